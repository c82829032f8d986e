//! Where answers and attempts to connect end, and that the reason is told alike on the stack and on the kernel's sockets.

use bywash_lab::{Host, lock};

use crate::instance::{BYWASH, Instance, client, host, pair};
use crate::tcp::{connect, failures};

/// Takes connections one after the other, hears a request on each, gives the answer and closes, until the address is not its own.
fn closing_server(
    host: &Host,
    port: u16,
    answer: &'static [u8],
    connections: usize,
) -> std::thread::JoinHandle<()> {
    let listener = host.enter(|| std::net::TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            assert!(std::io::Read::read(&mut stream, &mut asked).unwrap() > 0);
            std::io::Write::write_all(&mut stream, answer).unwrap();
        }
    })
}

/// On the stack and on the kernel's sockets: what ends too soon is no download, and a server that closes after each answer fails
/// nobody.
#[test]
fn answers_that_end_with_their_connection_are_told_from_those_cut_short() {
    const CUT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nfour";
    const TO_THE_END: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nto the end";
    const CHUNKED: &[u8] = b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\
                             Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    const REQUESTS: usize = 20;
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let ours = format!("--port|xdp:{}|--addr|10.9.0.2/24|--force", pair.far.name);
    for (host, place) in [(&near, "--kernel"), (&far, &*ours)] {
        let server = closing_server(&near, 8080, CUT, 1);
        let (code, cut) =
            client(host, &format!("tcp|download|10.9.0.1:8080|--path|/|--duration|60s|{place}"));
        server.join().unwrap();
        assert_eq!(code, Some(1), "{cut}");
        let why = "1 failed: the peer closed a connection by which it owed an answer";
        assert_eq!(failures(&cut), (vec![("cut_short", 1)], why));
        let server = closing_server(&near, 8081, TO_THE_END, 1);
        let (code, whole) =
            client(host, &format!("tcp|download|10.9.0.1:8081|--path|/|--duration|60s|{place}"));
        server.join().unwrap();
        assert_eq!((code, &whole["met"]), (Some(0), &true.into()), "{whole}");
        for (port, answer) in [(8082, TO_THE_END), (8083, CHUNKED)] {
            let server = closing_server(&near, port, answer, REQUESTS);
            let words = format!("tcp|load|http|10.9.0.1:{port}|--requests|{REQUESTS}|--duration|60s|{place}");
            let (code, load) = client(host, &words);
            server.join().unwrap();
            assert_eq!(
                (code, &load["requests"], &load["errors"]),
                (Some(0), &REQUESTS.into(), &0.into()),
                "{load}"
            );
            assert_eq!(load["connections"], REQUESTS, "{load}");
        }
    }
}

#[test]
fn two_servers_on_the_kernels_sockets_do_not_share_a_port() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let mut second = host.command(BYWASH).unwrap();
    let output =
        second.args(["tcp", "echo", "--kernel", "--listen", "8080", "--duration", "1s"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.starts_with("bywash: port 8080: Address already in use"), "{complaint}");
    http.end();
}

#[test]
fn no_route_is_a_reason_with_the_kernels_sockets_too() {
    let Some(_guard) = lock() else { return };
    let host = host();
    for words in ["load|http|192.0.2.1:80|--connections|3", "download|192.0.2.1:80|--streams|3"] {
        let (code, summary) = client(&host, &format!("tcp|{words}|--kernel|--duration|60s"));
        assert_eq!(code, Some(1), "{summary}");
        assert_eq!(failures(&summary), (vec![("unreachable", 3)], "3 failed: host unreachable"));
    }
    assert_eq!(connect(&host, "192.0.2.1:80|--kernel"), "not met: host unreachable\n");
    // More than files may be open.
    let mut many = host.command("sh").unwrap();
    let line = format!("ulimit -n 100; exec {BYWASH} tcp load http 127.0.0.1:80 --kernel --connections 200");
    let output = many.args(["-c", &line]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("Too many open files") && complaint.contains("(ulimit -n)"), "{complaint}");
}

#[test]
fn what_comes_and_cannot_be_written_is_no_success() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let server = closing_server(&host, 8080, b"hello", 1);
    let mut command = host.command("sh").unwrap();
    let line = format!("echo hi | {BYWASH} tcp connect 127.0.0.1:8080 --kernel > /dev/full");
    let output = command.args(["-c", &line]).output().unwrap();
    server.join().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("not met: standard output can't be written: No space left").count(), 1, "{said}");
}

/// On the stack and on the kernel's sockets: whoever sends a body that nobody reads is told so, and not that the connection was reset.
#[test]
fn who_is_refused_while_it_is_sending_has_its_answer() {
    const BODY: usize = 3_000_000;
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let kernel = Instance::start(&near, "tcp|http|--kernel");
    let ours = Instance::start(&far, &format!("tcp|http|--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name));
    for (to, server) in [("127.0.0.1", kernel), ("10.9.0.2", ours)] {
        let told = near.enter(|| {
            let mut stream = std::net::TcpStream::connect((to, 80)).unwrap();
            let head = format!("PUT /big HTTP/1.1\r\nHost: {to}\r\nContent-Length: {BODY}\r\n\r\n");
            std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
            // By now the answer is there, and nothing more will come.
            std::thread::sleep(std::time::Duration::from_millis(300));
            for piece in [0; BODY].chunks(100_000) {
                std::io::Write::write_all(&mut stream, piece)?;
            }
            let mut told = String::new();
            std::io::Read::read_to_string(&mut stream, &mut told).map(|_| told)
        });
        let told = told.unwrap().unwrap();
        assert!(
            told.starts_with("HTTP/1.1 405 ") && told.ends_with("\r\nConnection: close\r\n\r\n"),
            "{told}"
        );
        let summary = server.end();
        assert_eq!((&summary["requests"], &summary["errors"]), (&1.into(), &0.into()), "{summary}");
    }
}
