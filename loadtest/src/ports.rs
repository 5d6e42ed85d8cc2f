//! Loopback ports for servers in processes of their own.

use socket2::{Domain, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Mutex, PoisonError},
};

/// What keeps the ports of this process.
static KEPT: Mutex<Vec<Socket>> = Mutex::new(Vec::new());

/// A loopback port that is free and stays so for whoever asks for it by its number, as long as this process lives: also while a server that had it is
/// down. Until a server listens, connections to it are refused.
///
/// A socket is bound to the port and never listens. Such a port is neither given to a `bind` of port 0 nor to a `connect`, but a server that sets
/// `SO_REUSEADDR`, as servers do, may have it (ip(7), "ip_local_port_range"; socket(7), "SO_REUSEADDR").
///
/// # Errors
/// If no port or no file descriptor is left.
pub fn free_port() -> io::Result<u16> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket();
    let address = address.ok_or_else(|| io::Error::other("not an internet address"))?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(socket);
    Ok(address.port())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Binds as one does who has not been told of the port.
    fn stranger(address: SocketAddr) -> io::Result<()> {
        Socket::new(Domain::IPV4, Type::STREAM, None)?.bind(&address.into())
    }

    #[test]
    fn a_port_stays_a_servers_while_it_is_down() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        for _ in 0..2 {
            let refused = TcpStream::connect(address).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let taken = stranger(address).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            let server = TcpListener::bind(address).unwrap();
            let _open = TcpStream::connect(address).unwrap();
            drop(server);
        }
    }
}
