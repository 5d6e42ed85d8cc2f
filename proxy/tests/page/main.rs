//! The status page in a real browser, before a real proxy, etcd and datastore.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

mod browser;

use browser::Browser;
use palisade_lease::{LeaseOptions, LeaseUrl};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, exchange, free_port, get},
};
use std::{io::Write, net::SocketAddr};

const ROUTES: &str = "[[route]]\npath = \"/{job}\"\nscope = \"jobs/{job}\"\n";

fn proxy(origin: &Origin, leases: &Etcd) -> Palisade {
    let mut proxy = Palisade::new(&format!("http://{}", origin.address()))
        .unwrap()
        .set("leases", leases.url())
        // The same after a restart.
        .set("admin", format!("127.0.0.1:{}", free_port().unwrap()))
        .routes(ROUTES)
        .unwrap();
    proxy.start().unwrap();
    proxy
}

fn put(to: SocketAddr, path: &str, token: u64) -> String {
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: db\r\nX-Fence-Token: {token}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
    );
    exchange(to, request.as_bytes()).unwrap()
}

async fn lease(etcd: &Etcd, name: &str, holder: &str) -> palisade_lease::Lease {
    let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
    let options = LeaseOptions {
        holder: Some(holder.to_owned()),
        ..LeaseOptions::default()
    };
    store.acquire(name, options).await.unwrap()
}

const HOSTILE: &str =
    "</td><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_what_happens_as_it_happens() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let (etcd, origin) = (Etcd::start().unwrap(), Origin::tcp().unwrap());
    let mut proxy = proxy(&origin, &etcd);
    let nightly = lease(&etcd, "jobs/nightly", "host-a").await;
    assert!(put(proxy.address(), "/nightly", nightly.token().get()).starts_with("HTTP/1.1 204"));
    browser.go(&format!("http://{}/", proxy.admin()));
    browser.wait(
        "the live page",
        "return document.querySelector('#live').textContent === 'Live'",
    );
    browser.run("window.same = true");
    browser.wait(
        "readiness",
        "return document.querySelector('[role=status]').innerText === 'Ready.'",
    );
    browser.wait(
        "the holder",
        "return document.querySelector('#rows tr').innerText.includes('host-a')",
    );
    let row = browser.text("#rows tr");
    let token = nightly.token().get().to_string();
    for part in ["jobs/nightly", &token, "open"] {
        assert!(row.contains(part), "{part} is not in {row}");
    }
    // A refusal, and a new scope with a holder whose name is an attack: both come by themselves.
    assert!(put(proxy.address(), "/nightly", 1).starts_with("HTTP/1.1 412"));
    let hostile = lease(&etcd, "jobs/hostile", HOSTILE).await;
    put(proxy.address(), "/hostile", hostile.token().get());
    browser.wait(
        "the refusal",
        "return document.querySelector('#refusals').innerText.includes('stale-token')",
    );
    browser.wait(
        "the new scope",
        "return document.querySelector('#rows').innerText.includes('jobs/hostile')",
    );
    browser.wait(
        "its holder",
        "return document.querySelector('#rows').innerText.includes('</td><script>')",
    );
    assert!(browser.text("#refusals tr").contains("jobs/nightly"));
    assert!(browser.text("#rows").contains("stale-token"));
    assert_eq!(browser.run("return document.title"), "Palisade");
    assert_eq!(
        browser.run("return document.querySelectorAll('td script, td img').length"),
        0
    );
    assert_eq!(
        browser.run("return window.same"),
        true,
        "it was loaded anew"
    );
    // The datastore's address is taken over by nobody: not ready, and that is told where a screen reader hears it.
    drop(origin);
    browser.wait(
        "readiness",
        "return document.querySelector('[role=status]').innerText.includes('Not ready')",
    );
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    // The proxy goes: what is shown is said to be old, until it is back.
    proxy.stop();
    browser.wait(
        "the loss",
        "return document.querySelector('#live.lost')?.textContent.includes('lost')",
    );
    proxy.start().unwrap();
    browser.wait(
        "the proxy to be back",
        "return document.querySelector('#live:not(.lost)')?.textContent === 'Live'",
    );
    drop((nightly, hostile));
}

/// Scopes without a lease store: the first token of each opens it.
fn with_scopes(origin: &Origin, count: usize) -> Palisade {
    let mut proxy = Palisade::new(&format!("http://{}", origin.address()))
        .unwrap()
        .routes(ROUTES)
        .unwrap();
    proxy.start().unwrap();
    let pipes = 8;
    std::thread::scope(|threads| {
        for pipe in 0..pipes {
            let address = proxy.address();
            threads.spawn(move || {
                for number in (pipe..count).step_by(pipes) {
                    let answer = put(address, &format!("/{number:05}"), 7);
                    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
                }
            });
        }
    });
    proxy
}

#[test]
fn many_scopes_are_searched_and_paged_by_keyboard_alone() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let origin = Origin::tcp().unwrap();
    let proxy = with_scopes(&origin, 300);
    browser.go(&format!("http://{}/", proxy.admin()));
    browser.wait(
        "the live page",
        "return document.querySelector('#live').textContent === 'Live'",
    );
    assert_eq!(
        browser.run("return document.querySelectorAll('#rows tr').length"),
        50
    );
    assert_eq!(browser.text("#found"), "300 of 300 in memory, page 1 of 6");
    // Tab: past the link to the scopes, which is seen then, into the search.
    browser.press("\u{e004}");
    assert_eq!(
        browser.run("return document.activeElement.getBoundingClientRect().left > 0"),
        true
    );
    browser.press("\u{e004}");
    assert_eq!(browser.run("return document.activeElement.id"), "search");
    assert_ne!(
        browser.run("return getComputedStyle(document.activeElement).outlineStyle"),
        "none"
    );
    assert_eq!(
        browser.run("return document.activeElement.labels[0].innerText"),
        "Scope, holder or host"
    );
    // From now on each connection for events is kept in sight.
    browser.run(
        "window.made = []; const Source = EventSource; \
         window.EventSource = function (url) { const source = new Source(url); made.push(source); return source; };",
    );
    browser.press("0029\u{e007}");
    browser.wait(
        "what was searched for",
        "return document.querySelectorAll('#rows tr').length === 11",
    );
    assert_eq!(
        browser.run("return document.activeElement.id"),
        "search",
        "the focus stays"
    );
    assert_eq!(browser.run("return location.search"), "?search=0029");
    browser.press("\u{e003}\u{e003}\u{e003}\u{e003}");
    browser.wait(
        "all",
        "return document.querySelectorAll('#rows tr').length === 50",
    );
    // What was asked for before must not come in between.
    assert_eq!(
        browser.run(
            "return made.length > 1 && made.slice(0, -1).every((source) => source.readyState === 2)"
        ),
        true
    );
    // Select, button, and the first link that leads anywhere.
    browser.press("\u{e004}\u{e004}\u{e004}");
    assert_eq!(
        browser.run("return document.activeElement.innerText"),
        "Next"
    );
    // It keeps the focus when there are more pages.
    for number in 300..351 {
        put(proxy.address(), &format!("/{number:05}"), 7);
    }
    browser.wait(
        "two pages more",
        "return document.querySelector('#found').innerText === '351 of 351 in memory, page 1 of 8'",
    );
    assert_eq!(
        browser.run("return document.activeElement.innerText"),
        "Next"
    );
    browser.press("\u{e007}");
    browser.wait(
        "the second page",
        "return location.search === '?page=2' && document.readyState === 'complete'",
    );
    assert!(browser.text("#rows").starts_with("jobs/00050"));
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn it_fits_a_phone_and_the_dark() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let origin = Origin::tcp().unwrap();
    let proxy = with_scopes(&origin, 60);
    put(proxy.address(), "/00001", 3);
    // A name without a place to break it.
    put(proxy.address(), &format!("/{}", "0".repeat(100)), 7);
    let url = format!("http://{}/", proxy.admin());
    let mut papers = Vec::new();
    for (name, width, height, scheme) in [
        ("light", 1200, 900, "light"),
        ("dark", 1200, 900, "dark"),
        ("phone", 320, 640, "light"),
    ] {
        browser.look(width, height, scheme);
        browser.go(&url);
        browser.wait(
            "the live page",
            "return document.querySelector('#live').textContent === 'Live'",
        );
        assert_eq!(
            browser.run("return window.innerWidth"),
            width,
            "{name} is drawn for another width, and made smaller"
        );
        let wide = browser.run(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth",
        );
        assert_eq!(wide, 0, "{name} scrolls sideways");
        let colors = ["backgroundColor", "color"].map(|of| {
            let color = browser.run(&format!("return getComputedStyle(document.body).{of}"));
            color.as_str().unwrap().to_owned()
        });
        papers.push(colors);
        if let Some(folder) = std::env::var_os("PICTURES") {
            let file = std::path::Path::new(&folder).join(format!("page-{name}.png"));
            let mut decode = std::process::Command::new("base64")
                .arg("-d")
                .stdin(std::process::Stdio::piped())
                .stdout(std::fs::File::create(file).unwrap())
                .spawn()
                .unwrap();
            decode
                .stdin
                .take()
                .unwrap()
                .write_all(browser.picture().as_bytes())
                .unwrap();
            assert!(decode.wait().unwrap().success());
        }
    }
    let [light, dark] = [&papers[0], &papers[1]];
    assert!(
        light[0] != dark[0] && light[1] != dark[1],
        "the dark is light: {papers:?}"
    );
    // On the phone there is no head of the table: each figure says what it is.
    let named = "return getComputedStyle(document.querySelector('#rows td'), '::before').content";
    let named = browser.run(named).as_str().unwrap().to_owned();
    assert!(
        named.contains("data-is") || named.contains("floor"),
        "{named}"
    );
}

#[test]
fn without_a_script_all_of_it_is_there_and_others_may_not_frame_it() {
    let origin = Origin::tcp().unwrap();
    let proxy = with_scopes(&origin, 60);
    put(proxy.address(), "/00001", 3);
    let page = get(proxy.admin(), "/?search=0000&page=1").unwrap();
    let (head, html) = page.split_once("\r\n\r\n").unwrap();
    for field in [
        "content-security-policy: default-src 'none'; ",
        "style-src 'self'; script-src 'self'; connect-src 'self'; ",
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n",
        "referrer-policy: no-referrer",
        "nosniff",
        "no-store",
    ] {
        assert!(head.contains(field), "{field} is not in {head}");
    }
    assert!(
        html.contains("10 of 60 in memory")
            && html.contains("jobs/00009")
            && !html.contains("jobs/00010")
    );
    assert!(
        html.contains("stale-token") && html.contains("<noscript><meta http-equiv=\"refresh\"")
    );
    for part in [
        "<html lang=\"en\">",
        "<dt>Upstream</dt>",
        "data-is=\"reason\"",
    ] {
        assert!(html.contains(part), "{part} is not in {html}");
    }
    let page = get(proxy.admin(), "/?show=refused").unwrap();
    assert!(
        page.contains("<option value=\"refused\" selected>")
            && page.contains("1 of 60 in memory")
            && page.contains("jobs/00001"),
        "{page}"
    );
    // What is typed is given back as text.
    let page = get(
        proxy.admin(),
        "/?search=%22%3E%3Cscript%3E%7Brows%7D%26quot;%27",
    )
    .unwrap();
    assert!(
        page.contains("value=\"&quot;&gt;&lt;script&gt;{rows}&amp;quot;&#39;\""),
        "{page}"
    );
    // A control character, and one that turns the rest of the line around.
    let page = get(proxy.admin(), "/?search=a%1Bb%E2%80%AEc%E2%81%A6d").unwrap();
    let value = "value=\"a\u{fffd}b\u{fffd}c\u{fffd}d\"";
    assert!(page.contains(value), "{page}");
    let scopes = get(proxy.admin(), "/scopes?search=0005&size=4").unwrap();
    assert!(scopes.contains("x-total-count: 11"), "{scopes}");
    assert_eq!(scopes.matches("\"scope\":").count(), 4);
    assert_eq!(proxy.scopes().len(), 60);
}

/// Whoever watches holds up no stop, and there are not more of them than can be served.
#[test]
fn those_who_watch_are_bounded_and_hold_up_no_stop() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = with_scopes(&origin, 1);
    let open = || {
        let mut stream = std::net::TcpStream::connect(proxy.admin()).unwrap();
        stream
            .write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(stream.try_clone().unwrap()),
            &mut line,
        )
        .unwrap();
        (line, stream)
    };
    let watchers: Vec<_> = (0..32).map(|_| open()).collect();
    assert!(
        watchers
            .iter()
            .all(|(line, _)| line.starts_with("HTTP/1.1 200"))
    );
    // Whoever is turned away takes no place.
    for _ in 0..32 {
        assert!(open().0.starts_with("HTTP/1.1 503"));
    }
    // They go, others may come; one is still there at the end.
    drop(watchers);
    let _last = palisade_loadtest::servers::wait_for("a place", || {
        let (line, stream) = open();
        line.starts_with("HTTP/1.1 200").then_some(stream)
    });
    assert!(proxy.stop().success());
}
