//! nginx with Lua, HAProxy with a map and Envoy with Lua, each with the same simple check: what people use in place of a fence.
//! Their configurations are in `loadtest/peers/`.

use crate::{
    certificate::Certificate,
    servers::{Process, free_port, wait_for},
};
use nix::sys::signal::Signal;
use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

/// Another proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// nginx with Lua; its module is a package of its own.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Envoy: the program `envoy`, or the one that `PALISADE_ENVOY` names.
    Envoy,
}

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Workers, or threads.
    pub workers: usize,
    /// With this certificate, and HTTP/2 for those who ask for it; else without TLS.
    pub tls: Option<&'a Certificate>,
}

/// A peer as it runs.
#[derive(Debug)]
pub struct Running {
    /// The process that was started; others may be below it.
    pub process: Process,
    /// Where it only forwards.
    pub plain: SocketAddr,
    /// Where it checks tokens.
    pub fence: SocketAddr,
}

impl Peer {
    /// Whether it can be run here.
    pub fn installed(self) -> bool {
        match self {
            Self::Nginx => {
                Path::new("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists()
                    && runs("nginx", "-v")
            }
            Self::Haproxy => runs("haproxy", "-v"),
            Self::Envoy => runs(&envoy(), "--version"),
        }
    }

    /// Starts it with one worker and without TLS before an upstream, with its files in a folder.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(self, folder: &Path, upstream: SocketAddr) -> io::Result<Running> {
        let setup = Setup {
            workers: 1,
            tls: None,
        };
        self.start_as(setup, folder, upstream)
    }

    /// The same in another way.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start_as(
        self,
        setup: Setup<'_>,
        folder: &Path,
        upstream: SocketAddr,
    ) -> io::Result<Running> {
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (plain, fence) = (address(free_port()?), address(free_port()?));
        for name in ["run", "configs"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(
            folder.join("configs/hwm.map"),
            include_str!("../peers/hwm.map"),
        )?;
        let (text, plain_before, fence_before) = match self {
            Self::Nginx => (
                include_str!("../peers/nginx.conf"),
                "127.0.0.1:8081",
                "127.0.0.1:8091",
            ),
            Self::Haproxy => (
                include_str!("../peers/haproxy.cfg"),
                "127.0.0.1:8082",
                "127.0.0.1:8092",
            ),
            Self::Envoy => (
                include_str!("../peers/envoy.yaml"),
                "address: 127.0.0.1, port_value: 8083",
                "address: 127.0.0.1, port_value: 8093",
            ),
        };
        let text = self.with(setup, text);
        let as_here = |address: SocketAddr| match self {
            Self::Envoy => format!("address: {}, port_value: {}", address.ip(), address.port()),
            _ => address.to_string(),
        };
        let mut config = text
            .replace(plain_before, &as_here(plain))
            .replace(fence_before, &as_here(fence))
            .replace(
                &as_here(SocketAddr::from((Ipv4Addr::LOCALHOST, 9000))),
                &as_here(upstream),
            )
            .replace("@PERF@", &folder.display().to_string());
        if self == Self::Nginx && nix::unistd::geteuid().is_root() {
            // Its workers would become another user and could not use the folder.
            config.insert_str(0, "user root;\n");
        }
        let path = folder.join(match self {
            // It goes by the name.
            Self::Envoy => "peer.yaml",
            _ => "peer.conf",
        });
        fs::write(&path, config)?;
        let mut command = match self {
            Self::Nginx => Command::new("nginx"),
            Self::Haproxy => Command::new("haproxy"),
            Self::Envoy => Command::new(envoy()),
        };
        match self {
            Self::Nginx => command.arg("-c").arg(&path),
            Self::Haproxy => command.args(["-db", "-f"]).arg(&path),
            Self::Envoy => command
                .args(["--disable-hot-restart", "--log-level", "error"])
                .args(["--concurrency", &setup.workers.to_string()])
                .arg("-c")
                .arg(&path),
        };
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = Process::start("peer", &mut command)?;
        let up = wait_for("the other proxy to listen", || {
            let ended = process.ended().map(|_| false);
            ended.or_else(|| TcpStream::connect(fence).is_ok().then_some(true))
        });
        if !up {
            return Err(io::Error::other(format!("{self:?} ended at once")));
        }
        Ok(Running {
            process,
            plain,
            fence,
        })
    }

    /// Its configuration with so many workers, and with TLS where that is asked for.
    fn with(self, setup: Setup<'_>, text: &str) -> String {
        let workers = setup.workers;
        let text = match self {
            Self::Nginx => text.replace(
                "worker_processes 1;",
                &format!("worker_processes {workers};"),
            ),
            Self::Haproxy => text.replace("nbthread 1", &format!("nbthread {workers}")),
            Self::Envoy => text.to_owned(),
        };
        let Some(tls) = setup.tls else {
            return text;
        };
        let (cert, key, both) = (tls.cert.display(), tls.key.display(), tls.both.display());
        match self {
            Self::Nginx => text.replace(
                " reuseport;",
                &format!(" reuseport ssl http2; ssl_certificate {cert}; ssl_certificate_key {key};"),
            ),
            Self::Haproxy => ["127.0.0.1:8082", "127.0.0.1:8092"]
                .iter()
                .fold(text, |text, bind| {
                    let tls = format!("bind {bind} ssl crt {both} alpn h2,http/1.1");
                    text.replace(&format!("bind {bind}"), &tls)
                }),
            Self::Envoy => text.replace(
                "    - filters:\n",
                &format!(
                    "    - transport_socket:\n        name: envoy.transport_sockets.tls\n        typed_config:\n          \
                     \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n          \
                     common_tls_context: {{ alpn_protocols: [h2, http/1.1], tls_certificates: [ {{ certificate_chain: \
                     {{ filename: {cert} }}, private_key: {{ filename: {key} }} }} ] }}\n      filters:\n"
                ),
            ),
        }
    }
}

/// Where Envoy is.
fn envoy() -> String {
    std::env::var("PALISADE_ENVOY").unwrap_or_else(|_| "envoy".to_owned())
}

impl Running {
    /// Sends a signal to all its processes.
    pub fn signal(&self, signal: Signal) {
        let _ = nix::sys::signal::killpg(self.process.pid(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
