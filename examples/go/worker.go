// palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- go run examples/go/worker.go http://127.0.0.1:8080/report.txt
//
// A worker in Go's standard library: one header. PUTs each line of its input.
// Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// patience is how many seconds a write may wait in all, while it is refused for now.
func patience() int {
	seconds, err := strconv.Atoi(os.Getenv("FENCE_PATIENCE"))
	if err != nil {
		return 60
	}
	return seconds
}

// write PUTs once, and again only what was refused for now: it was never sent to the datastore.
func write(url, token, line string) (*http.Response, error) {
	for waited := 0; ; {
		request, err := http.NewRequest(http.MethodPut, url, strings.NewReader(line))
		if err != nil {
			return nil, err
		}
		request.Header.Set("X-Fence-Token", token)
		// Without this the transport may send a PUT a second time by itself.
		request.GetBody = nil
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		later, err := strconv.Atoi(answer.Header.Get("Retry-After"))
		if !isRefused(answer) || answer.StatusCode != http.StatusServiceUnavailable || err != nil || waited+later > patience() {
			return answer, nil
		}
		answer.Body.Close()
		waited += later
		time.Sleep(time.Duration(later) * time.Second)
	}
}

// isRefused says whether the proxy said no, and not the datastore.
func isRefused(answer *http.Response) bool {
	return answer.Header.Get("X-Fence-Outcome") == "refused"
}

// exitCode is 0 to go on. The token in X-Fence-Highest is another worker's, and never to be sent.
func exitCode(answer *http.Response) int {
	switch {
	case answer.StatusCode < 300:
		return 0
	case isRefused(answer) && answer.StatusCode == http.StatusPreconditionFailed:
		return 76
	case isRefused(answer) && answer.StatusCode == http.StatusServiceUnavailable:
		return 69
	default:
		return 1
	}
}

func main() {
	token := os.Getenv("FENCE_TOKEN")
	if len(os.Args) != 2 || token == "" {
		fmt.Fprintln(os.Stderr, "usage, under palisade-lease run: worker URL")
		os.Exit(64)
	}
	fmt.Printf("worker: process %d has the lease, token %s\n", os.Getpid(), token)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := write(os.Args[1], token, lines.Text()+"\n")
		if err != nil {
			fmt.Fprintln(os.Stderr, "nobody knows whether this was written:", err)
			os.Exit(1)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		fmt.Printf("HTTP/1.1 %s\n", answer.Status)
		for name, values := range answer.Header {
			fmt.Printf("%s: %s\n", name, strings.Join(values, ", "))
		}
		fmt.Printf("\n%s\nworker: answered %d\n", body, answer.StatusCode)
		if code := exitCode(answer); code != 0 {
			os.Exit(code)
		}
	}
}
