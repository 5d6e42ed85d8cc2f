//! A real browser: Debian's Chromium, by W3C WebDriver.

use nix::sys::signal::Signal;
use palisade_loadtest::servers::{GIVE_UP, Process, wait_for};
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Command, Stdio},
};

/// A window; closed when dropped.
pub(crate) struct Browser {
    driver: Process,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// `None`, and says so, where there is no Chromium.
    pub(crate) fn open() -> Option<Self> {
        // It takes the port that it was given over IPv4 over IPv6 as well, and ends where somebody else has that one.
        let (driver, port) = (0..10).find_map(|_| start()).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port?));
        let mut browser = Self {
            driver: driver?,
            address,
            session: String::new(),
        };
        let options = json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let session = browser.tell("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn tell(&self, method: &str, path: &str, what: &Value) -> Value {
        let body = what.to_string();
        let request = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.session,
            self.address,
            body.len()
        );
        let (head, body) = exchange(self.address, &request).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {body}");
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        answer["value"].take()
    }

    pub(crate) fn go(&self, url: &str) {
        self.tell("POST", "/url", &json!({ "url": url }));
    }

    /// What a script gives that ends in `return`.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.tell(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// Waits until a script gives something that is true.
    pub(crate) fn wait(&self, what: &str, script: &str) {
        wait_for(what, || (self.run(script) == true).then_some(()));
    }

    /// Text that a person sees.
    pub(crate) fn text(&self, selector: &str) -> String {
        let text = self.run(&format!(
            "return document.querySelector({selector:?}).innerText"
        ));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Keys, as a person would press them.
    pub(crate) fn press(&self, keys: &str) {
        let pressed: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [
                    json!({ "type": "keyDown", "value": key }),
                    json!({ "type": "keyUp", "value": key }),
                ]
            })
            .collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": pressed }] });
        self.tell("POST", "/actions", &actions);
    }

    /// A window of this width, as on a phone, light or dark.
    pub(crate) fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    fn devtools(&self, command: &str, params: &Value) {
        self.tell(
            "POST",
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        );
    }

    /// A picture of what is seen, as PNG in base64.
    pub(crate) fn picture(&self) -> String {
        self.tell("GET", "/screenshot", &json!({}))
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// What the browser complained about.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.tell("POST", "/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .map(|entry| entry["message"].to_string())
            .collect()
    }
}

/// The driver, and its port; without one where there is no driver. `None`: it ended.
fn start() -> Option<(Option<Process>, Option<u16>)> {
    let mut command = Command::new("chromedriver");
    command
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut driver = match Process::start("chromedriver", &mut command) {
        Ok(driver) => driver,
        Err(error) => {
            println!("skipped: {error} (Debian's chromium and chromium-driver)");
            return Some((None, None));
        }
    };
    let mut said = BufReader::new(driver.child().stdout.take()?).lines();
    let port = said.find_map(|line| {
        let (_, port) = line.as_ref().ok()?.split_once("successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    })?;
    // What it says later must not fill the pipe.
    std::thread::spawn(move || said.for_each(drop));
    Some((Some(driver), Some(port)))
}

/// Head and body of an answer. It ends by its length: the driver does not close.
fn exchange(address: SocketAddr, request: &str) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    stream.write_all(request.as_bytes())?;
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[start..].trim_end().to_ascii_lowercase();
        if let Some(told) = line.strip_prefix("content-length:") {
            length = told.trim().parse().map_err(io::Error::other)?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its windows are processes of their own, which it ends itself.
        let request = format!(
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.session, self.address
        );
        let _ = exchange(self.address, &request);
        self.driver.signal(Signal::SIGTERM);
        let _ = self.driver.ended();
    }
}
