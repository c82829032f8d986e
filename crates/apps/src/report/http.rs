//! The HTTP endpoint that Prometheus scrapes: one thread, which no client can hold up.
//!
//! There is one text to be read and no state, so each connection gets one answer and is closed. Every connection has a
//! deadline, requests have a length limit, and there are at most [`MOST_CONNECTIONS`] at a time: one more takes the place
//! of the oldest. So a scrape is answered at once also when others have opened connections that say nothing, or read
//! nothing.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::prometheus::CONTENT_TYPE;

/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;

/// How long one connection may take in all.
const DEADLINE: Duration = Duration::from_secs(5);

/// Bytes of the longest request: a scraper's has a few hundred.
const LONGEST_REQUEST: usize = 8192;

/// The text that is being served, and the thread that serves it. Dropping it ends the thread.
pub(super) struct Server {
    text: Arc<Mutex<Arc<str>>>,
    address: SocketAddr,
    /// Closing it wakes the thread, which then ends.
    alive: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` and serves what is given to [`Server::publish`].
    ///
    /// # Errors
    /// When the address can't be bound.
    pub(super) fn start(address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (alive, end) = UnixStream::pair()?;
        let text = Arc::new(Mutex::new(Arc::from("")));
        let served = Arc::clone(&text);
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(&listener, &end, || read(&served)))?;
        Ok(Self { text, address, alive: Some(alive), thread: Some(thread) })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `text` from now on.
    pub(super) fn publish(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, nothing was served any more; that is all.
            let _ = thread.join();
        }
    }
}

/// Connections that wait to be taken in.
const WAITING: i32 = 128;

/// Listens on `address`. All addresses are those of IPv4, too, whatever `net.ipv6.bindv6only` says, and these alone where there is no
/// IPv6.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address);
    }
    let socket = match socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
        Err(Errno::AFNOSUPPORT) => return TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())),
        socket => socket?,
    };
    sockopt::set_ipv6_v6only(&socket, false)?;
    // As the standard library has it: else the port is in use for a while after a run.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    rustix::net::listen(&socket, WAITING)?;
    Ok(socket.into())
}

fn read(text: &Mutex<Arc<str>>) -> Arc<str> {
    Arc::clone(&text.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Answers until the other side of `end` is closed.
fn serve(listener: &TcpListener, end: &UnixStream, text: impl Fn() -> Arc<str>) {
    let mut connections: Vec<Connection> = Vec::with_capacity(MOST_CONNECTIONS);
    loop {
        let mut fds = Vec::with_capacity(2 + connections.len());
        fds.push(PollFd::new(end, PollFlags::IN));
        fds.push(PollFd::new(listener, PollFlags::IN));
        fds.extend(
            connections.iter().map(|connection| {
                PollFd::from_borrowed_fd(connection.stream.as_fd(), connection.waits_for())
            }),
        );
        let oldest = connections.first().map(|connection| connection.until);
        let timeout = oldest.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if poll(&mut fds, timeout.as_ref()).is_err_and(|error| error != Errno::INTR) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let now = Instant::now();
        let mut ready = ready.into_iter().skip(1);
        let accepts = ready.next().unwrap_or(false);
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            connection.until > now && (!is_ready || connection.go_on(&text))
        });
        if accepts {
            accept(listener, &mut connections);
        }
    }
}

/// Takes a connection in, in place of the oldest when there is no room.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) {
    match listener.accept() {
        Ok((stream, _)) => {
            if connections.len() == MOST_CONNECTIONS {
                connections.remove(0);
            }
            if stream.set_nonblocking(true).is_ok() {
                let until = Instant::now() + DEADLINE;
                connections.push(Connection { stream, until, state: State::Reading(Vec::new()) });
            }
        }
        // Gone again already, or we have no descriptor left: not at once once more.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            std::thread::sleep(Duration::from_millis(10))
        }
        Err(_) => {}
    }
}

/// One client.
struct Connection {
    stream: TcpStream,
    until: Instant,
    state: State,
}

enum State {
    /// The request, as far as it has come.
    Reading(Vec<u8>),
    /// The answer, and how much of it has been sent.
    Writing(Vec<u8>, usize),
    /// Answered: what still comes is read and dropped, since closing before that might take the answer back.
    Draining,
}

impl Connection {
    fn waits_for(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Draining => PollFlags::IN,
            State::Writing(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done now; false when the connection is over.
    fn go_on(&mut self, text: &impl Fn() -> Arc<str>) -> bool {
        self.step(text).unwrap_or_else(|error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        })
    }

    fn step(&mut self, text: &impl Fn() -> Arc<str>) -> io::Result<bool> {
        let mut buffer = [0; 2048];
        match &mut self.state {
            State::Reading(request) => {
                let n = self.stream.read(&mut buffer)?;
                if n == 0 {
                    return Ok(false);
                }
                request.extend_from_slice(&buffer[..n]);
                if let Some(answer) = answer(request, text) {
                    self.state = State::Writing(answer, 0);
                }
            }
            State::Writing(answer, sent) => {
                *sent += self.stream.write(&answer[*sent..])?;
                if *sent == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Draining;
                }
            }
            State::Draining => return Ok(self.stream.read(&mut buffer)? > 0),
        }
        Ok(true)
    }
}

/// The answer to a request; `None` while it is not complete.
fn answer(request: &[u8], text: &impl Fn() -> Arc<str>) -> Option<Vec<u8>> {
    let is_complete =
        [&b"\r\n\r\n"[..], b"\n\n"].iter().any(|end| request.windows(end.len()).any(|w| w == *end));
    if !is_complete {
        let too_long = request.len() > LONGEST_REQUEST;
        return too_long
            .then(|| response("431 Request Header Fields Too Large", "", "the request is too long\n"));
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default().trim_end_matches('\r');
    let words: Vec<&str> = line.split(' ').collect();
    let &[method, target, "HTTP/1.0" | "HTTP/1.1"] = &words[..] else {
        return Some(response("400 Bad Request", "", "this is no HTTP/1.1 request\n"));
    };
    // A proxy may write the whole address, and a query changes nothing.
    let path =
        target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = path.split('?').next().unwrap_or_default();
    if method != "GET" && method != "HEAD" {
        return Some(response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD\n"));
    }
    let mut response = match path {
        "/metrics" => response("200 OK", "", &text()),
        "/" => response("200 OK", "", "bywash: the metrics are at /metrics\n"),
        _ => response("404 Not Found", "", "the metrics are at /metrics\n"),
    };
    if method == "HEAD" {
        let end = response.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |at| at + 4);
        response.truncate(end);
    }
    Some(response)
}

fn response(status: &str, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{fields}Connection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        let server = Server::start("127.0.0.1:0".parse().unwrap()).unwrap();
        server.publish("bywash_x 1\n".into());
        server
    }

    fn connect(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn ask(server: &Server, request: &[u8]) -> String {
        let mut stream = connect(server);
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scrape_gets_the_last_text() {
        let server = server();
        let answer = ask(&server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("\r\nContent-Length: 11\r\n") && answer.ends_with("\r\n\r\nbywash_x 1\n"));
        server.publish("bywash_x 2\n".into());
        assert!(ask(&server, b"GET http://h:1/metrics?a=b HTTP/1.0\n\n").ends_with("\nbywash_x 2\n"));
        assert!(ask(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("Connection: close\r\n\r\n"));
    }

    #[test]
    fn what_is_no_scrape_is_told_so() {
        let server = server();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "200"),
            (b"GET /x HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\nbody", "405"),
            (b"\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /metrics HTTP/2.0\r\n\r\n", "400"),
            (b"\xff\xfe\x00 \x80\r\n\r\n", "400"),
            (&[b'A'; LONGEST_REQUEST + 1], "431"),
        ] {
            let answer = ask(&server, request);
            let shown = String::from_utf8_lossy(&request[..request.len().min(40)]);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
        }
    }

    #[test]
    fn clients_that_say_nothing_or_read_nothing_hold_up_nobody() {
        let server = server();
        server.publish("x".repeat(8 << 20));
        let mut silent: Vec<TcpStream> = (0..2 * MOST_CONNECTIONS).map(|_| connect(&server)).collect();
        for stream in &mut silent {
            // Every third says half a word, every third asks and never reads. Some are closed already.
            let _ = stream.write_all(b"GET /met");
        }
        for stream in silent.iter_mut().step_by(3) {
            let _ = stream.write_all(b"rics HTTP/1.1\r\n\r\n");
        }
        let asked = Instant::now();
        let answer = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.len() > 8 << 20 && asked.elapsed() < DEADLINE);
    }

    #[test]
    fn a_connection_ends_at_its_deadline_and_all_end_with_the_server() {
        let server = server();
        let mut silent = connect(&server);
        let since = Instant::now();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "closed by the server");
        assert!(since.elapsed() >= DEADLINE - Duration::from_millis(500));
        let (mut open, address) = (connect(&server), server.address());
        drop(server);
        assert_eq!(open.read(&mut [0]).unwrap_or(0), 0);
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn an_address_that_is_taken_is_an_error() {
        let server = server();
        assert_eq!(Server::start(server.address()).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    }
}
