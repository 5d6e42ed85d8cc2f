//! How a connection to the datastore is opened. A trait, so that the same code runs over simulated sockets.

use socket2::SockRef;
use std::{
    future::Future,
    io::{self, IoSlice},
    mem::MaybeUninit,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// Opens connections. TLS, counting and timeouts are laid over it by the [`super::Pool`].
pub trait Connect: 'static {
    /// A connection, as the operating system (or a simulation) gives it.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Opens one. Nothing of a request is sent by this.
    fn connect(&self) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Whether an idle connection can't be used any more: closed, reset, or upstream said something that nobody asked for.
    /// Looks without waiting and without taking anything.
    fn is_gone(_stream: &Self::Stream) -> bool {
        false
    }

    /// Before an idle connection is closed on purpose: lets it end with a FIN and not with a reset.
    fn end_politely(_stream: &Self::Stream) {}
}

/// Where the datastore is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// Real sockets.
#[derive(Clone, Debug)]
pub struct SocketConnector {
    /// Where to.
    pub target: Target,
    /// `TCP_USER_TIMEOUT` (tcp(7), RFC 5482): how long sent bytes may stay unacknowledged before the kernel gives up. Must be
    /// below `settle`: what the kernel still tries to deliver later than that would disprove A6.
    pub user_timeout: Duration,
}

impl Connect for SocketConnector {
    type Stream = Socket;

    async fn connect(&self) -> io::Result<Socket> {
        match &self.target {
            Target::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
            Target::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                // A cut or a crash must discard what is unsent, not deliver it in the background.
                socket.set_linger(Some(Duration::ZERO))?;
                socket.set_tcp_user_timeout(Some(self.user_timeout))?;
                Ok(Socket::Tcp(stream))
            }
        }
    }

    fn is_gone(stream: &Socket) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let looked = match stream {
            Socket::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Socket::Unix(stream) => SockRef::from(stream).peek(&mut byte),
        };
        // 0 bytes is the end; a byte is an answer without a request (RFC 9112, section 9.2); WouldBlock is a live, silent peer.
        !matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn end_politely(stream: &Socket) {
        if let Socket::Tcp(stream) = stream {
            let _ = SockRef::from(stream).set_linger(None);
        }
    }
}

/// A TCP or unix connection.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

macro_rules! either {
    ($self:expr, $io:ident => $do:expr) => {
        match $self.get_mut() {
            Socket::Tcp($io) => $do,
            Socket::Unix($io) => $do,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_shutdown(cx))
    }
}
