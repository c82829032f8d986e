//! The ssh sessions that others have on this machine: who works here must not lose the connection because of us.
//!
//! sshd(8) tells what it starts for a user whose connection that is, in `SSH_CONNECTION`, and only once the user is logged in:
//! whoever just connects is not found. A process may outlive its session, and anybody may write anything to their own
//! environment. So it counts only what is also a connection that the kernel has, and that root has accepted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::SshConnection;
use super::guard::{session_of, ssh};

/// Sessions at most: each is looked for in packets.
const MOST: usize = 16;

/// `ESTABLISHED` and root, as these files write it.
const ESTABLISHED: &str = "01";
const ROOT: &str = "0";

/// Those beside our own, as far as we may look, and how many more there are than we can spare.
pub(super) fn others(own: Option<SshConnection>) -> (Vec<SshConnection>, usize) {
    let mut named: BTreeSet<SshConnection> = processes().filter_map(|id| ssh(&session_of(id)?)).collect();
    named.extend(own);
    // On a machine with very many connections it takes a while to look through them.
    if named.len() == usize::from(own.is_some()) {
        return (Vec::new(), 0);
    }
    let known = connections("thread-self").flat_map(|file| established(file, Some(ROOT)));
    let known: BTreeSet<SshConnection> = known.filter(|connection| named.contains(connection)).collect();
    let mut others: Vec<_> = known.into_iter().filter(|connection| Some(*connection) != own).collect();
    let more = others.split_off(others.len().min(MOST)).len();
    (others, more)
}

/// Whether the kernel has no such connection any more, neither in the thread's network namespace nor in that of who started this process:
/// it may have been sent into another one (`ip netns exec`).
pub(super) fn is_over(connection: SshConnection) -> bool {
    let parent = std::os::unix::process::parent_id().to_string();
    let mut files = ["thread-self", &parent].into_iter().flat_map(connections).peekable();
    // Where they can't be read nothing is known.
    files.peek().is_some() && !files.flat_map(|file| established(file, None)).any(|known| known == connection)
}

/// The TCP connections of a process's network namespace, by its name in `/proc`.
fn connections(process: &str) -> impl Iterator<Item = BufReader<File>> + use<> {
    let files = ["tcp", "tcp6"].map(|file| format!("/proc/{process}/net/{file}"));
    files.into_iter().filter_map(|file| File::open(file).ok()).map(BufReader::new)
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().map_while(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Established connections that `user` has accepted or made, or anybody, as if the other end were the client.
fn established(file: impl BufRead, user: Option<&str>) -> impl Iterator<Item = SshConnection> {
    file.lines().map_while(Result::ok).filter_map(move |line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, server, client, ESTABLISHED, _, _, _, owner, ..] = words[..] else { return None };
        let counts = user.is_none_or(|user| user == owner);
        counts.then_some(SshConnection { client: end(client)?, server: end(server)? })
    })
}

/// `0100007F:0016`: words of four bytes as they lie in memory, and the port.
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let mut octets = [0; 16];
            for (index, bytes) in octets.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&word(8 * index)?.to_ne_bytes());
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn established_connections_of_root_are_read() {
        // As a little-endian machine writes them.
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 010200C0:0016 070200C0:C366 01 00000000:00000000 02:000A7D8C 00000000     0        0 6129 4 0 20 4 29 10 -1\n\
            1: 010200C0:0016 080200C0:C366 06 00000000:00000000 02:000A7D8C 00000000     0        0 6129 4 0 20 4 29 10 -1\n\
            2: 010200C0:0016 090200C0:C366 01 00000000:00000000 02:000A7D8C 00000000  1000        0 6129 4 0 20 4 29 10 -1\n\
            3: B80D0120000000000000000001000000:0016 0000000000000000FFFF0000070200C0:0009 01 0:0 0:0 0 0 0 6\n\
            4: short\n";
        if cfg!(target_endian = "big") {
            return;
        }
        let told: Vec<_> = established(text.as_bytes(), Some(ROOT))
            .map(|connection| (connection.client.to_string(), connection.server.to_string()))
            .collect();
        let expected = [("192.0.2.7:50022", "192.0.2.1:22"), ("192.0.2.7:9", "[2001:db8::1]:22")];
        assert_eq!(told, expected.map(|(client, server)| (client.to_owned(), server.to_owned())));
    }

    #[test]
    fn a_session_counts_while_its_connection_is_there() {
        // What others than root have accepted does not count.
        let is_root = rustix::process::geteuid().is_root();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (client_end, server_end) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let session = |client: SocketAddr| {
            let value =
                format!("{} {} {} {}", client.ip(), client.port(), server_end.ip(), server_end.port());
            let mut shell = Command::new("sh");
            shell.args(["-c", "read end"]).stdin(Stdio::piped()).env("SSH_CONNECTION", value);
            shell.spawn().unwrap()
        };
        // Of the second there is no connection.
        let mut shells = [session(client_end), session(SocketAddr::new(client_end.ip(), 1))];
        let own = |client| SshConnection { client, server: server_end };
        let is_there = |of: Option<SshConnection>, client| others(of).0.contains(&own(client));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // A process has its environment once it has begun.
        while is_root && !is_there(None, client_end) {
            assert!(std::time::Instant::now() < until, "the session is not found");
        }
        assert_eq!(is_there(None, client_end), is_root);
        assert!(!is_there(None, SocketAddr::new(client_end.ip(), 1)));
        assert!(!is_there(Some(own(client_end)), client_end), "our own is known");
        assert!(!is_over(own(client_end)) && is_over(own(SocketAddr::new(client_end.ip(), 1))));
        drop((client, accepted));
        while is_there(None, client_end) || !is_over(own(client_end)) {
            assert!(std::time::Instant::now() < until, "its connection is gone");
        }
        for shell in &mut shells {
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }
}
