//! The kernel's end of a connection: one thread and one socket of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_reuseaddr, set_socket_send_buffer_size, socket_error,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::draw::{Case, First, Received, stream};

/// A socket that waits for us, or that will connect to us.
pub(crate) struct Kernel {
    socket: OwnedFd,
    case: Case,
    ours: SocketAddr,
    until: Instant,
}

impl Kernel {
    /// To be called in the kernel's namespace. A listener listens from here on.
    pub(crate) fn new(case: &Case, kernel: IpAddr, ours: IpAddr, until: Instant) -> Self {
        let family = if kernel.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        let [receive, send] = case.kernel_buffers;
        if receive > 0 {
            set_socket_recv_buffer_size(&socket, receive).unwrap();
        }
        if send > 0 {
            set_socket_send_buffer_size(&socket, send).unwrap();
        }
        if case.we_open {
            set_socket_reuseaddr(&socket, true).unwrap();
            bind(&socket, &SocketAddr::new(kernel, case.port())).unwrap();
            listen(&socket, 4).unwrap();
        }
        Self { socket, case: case.clone(), ours: SocketAddr::new(ours, case.port()), until }
    }

    /// Does all that its end does.
    ///
    /// # Errors
    /// In words, when it is not as it should be.
    pub(crate) fn run(self) -> Result<(), String> {
        let (until, case) = (self.until, self.case.clone());
        let mut stream = self.open()?;
        exchange(&mut stream, &case, until)
    }

    fn open(self) -> Result<TcpStream, String> {
        if self.case.we_open {
            let listener = TcpListener::from(self.socket);
            ready(&listener, PollFlags::IN, self.until)?;
            let (stream, _) = listener.accept().map_err(|error| format!("accept: {error}"))?;
            stream.set_nonblocking(true).map_err(|error| error.to_string())?;
            return Ok(stream);
        }
        match connect(&self.socket, &self.ours) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(format!("connect: {error}")),
        }
        ready(&self.socket, PollFlags::OUT, self.until)?;
        match socket_error(&self.socket).map_err(|error| error.to_string())? {
            Ok(()) => Ok(TcpStream::from(self.socket)),
            Err(error) => Err(format!("connect: {error}")),
        }
    }
}

fn ready(socket: impl AsFd, events: PollFlags, until: Instant) -> Result<(), String> {
    let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(1000));
    let timeout = Timespec::try_from(left).expect("seconds");
    match poll(&mut [PollFd::new(&socket, events)], Some(&timeout)) {
        Ok(0) => Err("nothing happens any more".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn exchange(socket: &mut TcpStream, case: &Case, until: Instant) -> Result<(), String> {
    let to_send = stream(case.seed, false, case.kernel.length);
    let mut received = Received::of(stream(case.seed, true, case.ours.length));
    let mut buffer = vec![0; case.kernel.reads];
    let (mut sent, mut shut, mut at_end) = (0, false, false);
    while !(shut && at_end) {
        if sent == to_send.len() && !shut && (case.first != First::Ours || at_end) {
            socket.shutdown(Shutdown::Write).map_err(|error| format!("shutdown: {error}"))?;
            shut = true;
            continue;
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, !at_end);
        events.set(PollFlags::OUT, sent < to_send.len());
        ready(&*socket, events, until).map_err(|why| {
            format!("{why}: {sent} sent, {} received, at the end {at_end}", received.length)
        })?;
        if sent < to_send.len() {
            let end = to_send.len().min(sent + case.kernel.writes);
            sent += now(socket.write(&to_send[sent..end]))?.unwrap_or(0);
        }
        if let Some(n) = now(socket.read(&mut buffer)).map_err(|why| format!("{why} after {sent} sent"))? {
            received.take(&buffer[..n])?;
            at_end = n == 0;
            if case.kernel.pause > 0 && n > 0 {
                std::thread::sleep(Duration::from_millis(case.kernel.pause));
            }
        }
    }
    if received.is_all() { Ok(()) } else { Err(format!("the end after {} bytes", received.length)) }
}

/// What a call did that does not wait; nothing when it would have to.
fn now(done: io::Result<usize>) -> Result<Option<usize>, String> {
    match done {
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
