//! Servers and clients of others: redis and memcached for `bywash tcp load`, nc for echo and sink, ab and wrk for http, and
//! nsd and dig at the two ends of a router.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, lock, skip};

use crate::instance::{Instance, Router, client, pair, payload, run};

/// A server that is ended when it is dropped.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it takes connections; `None` where this machine has none.
    fn start(host: &Host, program: &str, words: &str, at: (&str, u16)) -> Option<Self> {
        let folder = std::env::temp_dir();
        let mut command = host.command(program).unwrap();
        let child = command.args(words.split(' ')).current_dir(folder).stdout(Stdio::null()).spawn();
        let server = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            child => Self(child.unwrap()),
        };
        let until = Instant::now() + Duration::from_secs(30);
        while host.enter(|| TcpStream::connect(at).is_err()).unwrap() {
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
        let Some(_server) = Server::start(&near, program, words, ("10.9.0.1", port)) else {
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

#[test]
fn ab_and_wrk_get_every_answer() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let http = Instance::start(&far, &format!("tcp|http|--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name));
    // A connection for each request, and some that stay.
    for words in ["-q -n 3000 -c 16", "-q -k -n 3000 -c 16"] {
        let Some(told) = run(&near, "ab", &format!("{words} http://10.9.0.2/1000")) else {
            return skip("ab is not installed");
        };
        let behind = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name));
            line.map(|rest| rest.split_whitespace().next().unwrap_or_default().to_owned())
        };
        let figures = ["Complete requests:", "Failed requests:", "HTML transferred:"].map(behind);
        assert_eq!(figures, ["3000", "0", "3000000"].map(|text| Some(text.to_owned())), "{told}");
    }
    let Some(told) = run(&near, "wrk", "-t1 -c16 -d1 http://10.9.0.2/1000") else {
        return skip("wrk is not installed");
    };
    assert!(!told.contains("Socket errors") && !told.contains("Non-2xx"), "{told}");
    let summary = http.end();
    assert!(summary["requests"].as_u64().unwrap() > 6000, "{summary}");
}

#[test]
fn dig_asks_a_server_behind_a_router_and_is_refused_by_a_closed_port() {
    let Some(_guard) = lock() else { return };
    let router = Router::start();
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let config = format!(
        "server:\n  ip-address: 10.9.2.2\n  username: \"\"\n  zonesdir: \"{shown}\"\n  database: \"\"\n  pidfile: \"\"\n  \
         zonelistfile: \"{shown}/zones\"\n  xfrdfile: \"{shown}/state\"\n  xfrdir: \"{shown}\"\n  server-count: 1\n\
         remote-control:\n  control-enable: no\nzone:\n  name: example.test\n  zonefile: example.test\n"
    );
    let long = "a text of some length that makes the answer as long as it may be; ".repeat(3);
    let zone = format!(
        "$ORIGIN example.test.\n@ 3600 SOA ns hostmaster 1 3600 600 86400 3600\n@ 3600 NS ns\nns 3600 A 10.9.2.2\n\
         www 3600 A 192.0.2.1\n{}",
        (0..5).map(|i| format!("long 3600 TXT \"{i} {long}\"\n")).collect::<String>()
    );
    std::fs::write(folder.path().join("nsd.conf"), config).unwrap();
    std::fs::write(folder.path().join("example.test"), zone).unwrap();
    let words = format!("-d -c {shown}/nsd.conf");
    let Some(_server) = Server::start(&router.right, "nsd", &words, ("10.9.2.2", 53)) else {
        return skip("nsd is not installed");
    };
    let dig = |words: &str| {
        let output = router.left.command("dig").unwrap().args(words.split(' ')).output();
        match output {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            output => {
                let output = output.unwrap();
                Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
            }
        }
    };
    for by in ["+notcp", "+tcp"] {
        let asked = format!("@10.9.2.2 www.example.test A +short +tries=5 +time=5 {by}");
        let Some(told) = dig(&asked) else { return skip("dig is not installed") };
        assert_eq!(told, (Some(0), "192.0.2.1\n".into()), "{by}");
    }
    // One datagram of more than a thousand bytes.
    let long = dig("@10.9.2.2 long.example.test TXT +short +ignore +bufsize=1400 +tries=5 +time=5").unwrap();
    assert_eq!((long.0, long.1.lines().count()), (Some(0), 5), "{}", long.1);
    // Nobody listens there: the instance says so, and dig does not wait for what will not come.
    for address in ["10.9.1.1", "10.9.2.1"] {
        let (code, told) = dig(&format!("@{address} www.example.test A +tries=1 +time=60")).unwrap();
        assert_eq!((code, told.contains("connection refused")), (Some(9), true), "{told}");
    }
    let summary = router.instance.end();
    assert!(summary["forwarded"].as_u64().unwrap() > 12, "{summary}");
}
