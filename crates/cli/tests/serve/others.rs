//! Servers and clients of others: redis and memcached for `bywash tcp load`, nc for echo and sink.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, lock, skip};

use crate::instance::{Instance, client, pair, payload};

/// A server that is ended when it is dropped.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it takes connections; `None` where this machine has none.
    fn start(host: &Host, program: &str, words: &str, port: u16) -> Option<Self> {
        let folder = std::env::temp_dir();
        let mut command = host.command(program).unwrap();
        let child = command.args(words.split(' ')).current_dir(folder).stdout(Stdio::null()).spawn();
        let server = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            child => Self(child.unwrap()),
        };
        let until = Instant::now() + Duration::from_secs(30);
        while host.enter(|| TcpStream::connect(("10.9.0.1", port)).is_err()).unwrap() {
            assert!(Instant::now() < until, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn load_speaks_to_redis_and_memcached() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let place = format!("--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name);
    for (program, words, language, port) in [
        (
            "redis-server",
            "--port 6379 --bind 10.9.0.1 --protected-mode no --save  --appendonly no",
            "redis",
            6379,
        ),
        ("memcached", "-l 10.9.0.1 -p 11211 -U 0 -u root", "memcached", 11211),
    ] {
        let Some(_server) = Server::start(&near, program, words, port) else {
            return skip(&format!("{program} is not installed"));
        };
        let asked =
            format!("{language}|10.9.0.1:{port}|--connections|8|--depth|4|--requests|2000|--duration|60s");
        for (host, place) in [(&far, place.as_str()), (&near, "--kernel")] {
            let (code, set) = client(host, &format!("tcp|load|{asked}|--set|1000|{place}"));
            assert_eq!((code, &set["requests"]), (Some(0), &2000.into()), "{language} {place}: {set}");
            assert!(set["sent_bytes"].as_u64().unwrap() > 2_000_000, "{language} {place}: {set}");
            // What was stored comes back.
            let (code, get) = client(host, &format!("tcp|load|{asked}|{place}"));
            assert_eq!((code, &get["requests"]), (Some(0), &2000.into()), "{language} {place}: {get}");
            assert!(get["received_bytes"].as_u64().unwrap() > 2_000_000, "{language} {place}: {get}");
        }
    }
}

#[test]
fn nc_hears_its_echo_and_fills_the_sink() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24", "fd09::1/64"]);
    let said = payload(2_000_000);
    let place = format!("--port|xdp:{}|--addr|10.9.0.2/24|--addr|fd09::2/64", pair.far.name);
    let nc = |words: &str| {
        let mut command = near.command("nc.openbsd").unwrap();
        // -N: when all is said, it says so.
        command.args(["-N", "-w", "30"]).args(words.split(' '));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            child => child.unwrap(),
        };
        let mut stdin = child.stdin.take().unwrap();
        let heard = std::thread::scope(|scope| {
            scope.spawn(|| {
                stdin.write_all(&said).unwrap();
                drop(stdin);
            });
            child.wait_with_output().unwrap()
        });
        assert!(heard.status.success(), "{words}");
        Some(heard.stdout)
    };
    let echo = Instance::start(&far, &format!("tcp|echo|{place}"));
    for address in ["10.9.0.2 7", "fd09::2 7"] {
        let Some(heard) = nc(address) else { return skip("nc is not installed") };
        assert!(heard == said, "{address}: {} of {} bytes", heard.len(), said.len());
    }
    echo.end();
    let sink = Instance::start(&far, &format!("tcp|sink|{place}"));
    assert_eq!(nc("10.9.0.2 9"), Some(Vec::new()));
    assert_eq!(sink.end()["received_bytes"], said.len());
}
