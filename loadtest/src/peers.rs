//! nginx with Lua and HAProxy with a map, each with the same simple check: what people use in place of a fence. Their
//! configurations are in `loadtest/peers/`.

use crate::servers::{Process, free_port, wait_for};
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
        }
    }

    /// Starts it with one worker before an upstream, with its files in a folder.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(self, folder: &Path, upstream: SocketAddr) -> io::Result<Running> {
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
        };
        let mut config = text
            .replace(plain_before, &plain.to_string())
            .replace(fence_before, &fence.to_string())
            .replace("127.0.0.1:9000", &upstream.to_string())
            .replace("@PERF@", &folder.display().to_string());
        if self == Self::Nginx && nix::unistd::geteuid().is_root() {
            // Its workers would become another user and could not use the folder.
            config.insert_str(0, "user root;\n");
        }
        let path = folder.join("peer.conf");
        fs::write(&path, config)?;
        let mut command = match self {
            Self::Nginx => Command::new("nginx"),
            Self::Haproxy => Command::new("haproxy"),
        };
        match self {
            Self::Nginx => command.arg("-c").arg(&path),
            Self::Haproxy => command.args(["-db", "-f"]).arg(&path),
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
