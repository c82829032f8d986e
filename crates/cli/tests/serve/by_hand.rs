//! `tcp connect`, on the stack and on the kernel's sockets: each direction goes on for itself, and whoever does not read what it
//! shows keeps nobody else waiting.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, lock};
use rustix::process::{Pid, Signal, kill_process};

use crate::full_pipe::full_pipe;
use crate::instance::{BYWASH, Instance, host, is_pinged, little_memory, pair, payload};

/// A client in this folder, with pipes for all that it reads and writes.
fn client(host: &Host, folder: &tempfile::TempDir, to: &str, place: &str) -> Child {
    let mut command = host.command(BYWASH).unwrap();
    command.args(["tcp", "connect", to]).args(place.split('|')).args(["--quiet", "--duration", "60s"]);
    command.args(little_memory(place)).env("XDG_RUNTIME_DIR", folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn accepted(listener: &TcpListener) -> TcpStream {
    listener.accept().unwrap().0
}

/// Ends it as Ctrl-C does, and says how long that took.
fn interrupted(child: &mut Child) -> Duration {
    let began = Instant::now();
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

#[test]
fn what_is_typed_is_sent_on_when_the_server_has_said_its_last() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let ours = format!("--port|xdp:{}|--addr|10.9.0.2/24|--force", pair.far.name);
    let listener = near.enter(|| TcpListener::bind("10.9.0.1:8080")).unwrap().unwrap();
    let sent = payload(2_000_000);
    for (host, place) in [(&near, "--kernel"), (&far, &*ours)] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = client(host, &folder, "10.9.0.1:8080", place);
        let mut server = accepted(&listener);
        server.write_all(b"last words").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "it goes on with what is typed");
        let mut stdin = child.stdin.take().unwrap();
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stdin.write_all(&sent).unwrap();
                drop(stdin);
            });
            server.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        // One whose kernel has forgotten it by then answers our end with a reset: all was said and heard.
        near.sysctl("net.ipv4.tcp_fin_timeout", "1").unwrap();
        let mut child = client(host, &folder, "10.9.0.1:8080", place);
        let mut server = accepted(&listener);
        server.write_all(b"last words").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
        drop(server);
        std::thread::sleep(Duration::from_millis(2500));
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        // One that hears no more is another matter: what is typed then is lost.
        let mut child = client(host, &folder, "10.9.0.1:8080", place);
        drop(accepted(&listener));
        std::thread::sleep(Duration::from_millis(100));
        child.stdin.as_mut().unwrap().write_all(b"lost").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(1), "not met: connection reset by the peer\n"));
    }
}

#[test]
fn who_does_not_read_what_comes_stops_the_server_alone() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let ours = format!("--port|xdp:{}|--addr|10.9.0.2/24|--force", pair.far.name);
    let listener = near.enter(|| TcpListener::bind("10.9.0.1:8080")).unwrap().unwrap();
    let sent = payload(20_000_000);
    for (host, place) in [(&near, "--kernel"), (&far, &*ours)] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = client(host, &folder, "10.9.0.1:8080", place);
        let mut server = accepted(&listener);
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| server.write_all(&sent).is_ok());
            std::thread::sleep(Duration::from_millis(500));
            assert!(!writes.is_finished(), "nobody reads");
            if place != "--kernel" {
                // The engine's thread answers that, and pings.
                assert!(asks(&folder, "sockets").success());
                is_pinged(&near, "10.9.0.2");
            }
            // Read again, it comes. A quarter: buffers on the way may hold as much as a half.
            let mut got = vec![0; sent.len() / 4];
            child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
            assert!(got == sent[..got.len()]);
            let took = interrupted(&mut child);
            assert!(took < Duration::from_secs(2), "{took:?}");
            assert!(!writes.join().unwrap(), "a reset");
        });
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let why = "not met: standard output did not take all that had come\n";
        assert_eq!((output.status.code(), &*said), (Some(1), why));
    }
}

#[test]
fn an_instance_whose_reports_nobody_reads_works_on_and_can_be_ended() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let folder = tempfile::tempdir().unwrap();
    let (_reader, writer) = full_pipe();
    let mut command = far.command(BYWASH).unwrap();
    command.args(["serve", "--port", &format!("xdp:{}", pair.far.name), "--addr", "10.9.0.2/24", "--json"]);
    command.args(["--huge-pages", "off", "--memory", "48M"]).env("XDG_RUNTIME_DIR", folder.path());
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !asks(&folder, "addr").success() {
        assert!(Instant::now() < until, "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    is_pinged(&near, "10.9.0.2");
    let took = interrupted(&mut child);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not met: results can't be written: nobody reads them"), "{said}");
}

fn asks(folder: &tempfile::TempDir, what: &str) -> std::process::ExitStatus {
    let mut command = Command::new(BYWASH);
    command.arg(what).env("XDG_RUNTIME_DIR", folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

#[test]
fn those_who_say_nothing_keep_nobody_from_asking() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let serve = Instance::start(&host, "serve|--port|tap:wptap|--addr|10.9.0.2/24");
    let silent: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(serve.socket()).unwrap()).collect();
    let began = Instant::now();
    assert!(serve.told("addr --json").is_array());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The oldest have made room, and the latest may still ask.
    let mut last = silent.last().unwrap();
    last.write_all(b"{\"request\":\"stats\"}\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    silent[0].set_nonblocking(true).unwrap();
    assert_eq!((&silent[0]).read(&mut [0]).ok(), Some(0), "dropped");
    // Half a request waits for its other half, while others are answered.
    let mut slow = UnixStream::connect(serve.socket()).unwrap();
    slow.write_all(b"{\"requ").unwrap();
    assert!(serve.told("stats --json").is_object());
    slow.write_all(b"est\":\"stats\"}\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    serve.end();
}
