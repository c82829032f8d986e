//! Servers and clients of TCP, against each other and against Linux's own programs.

use std::process::Stdio;

use bywash_lab::sys::route::Gateway;
use bywash_lab::{Host, Pair, PairOptions, lock, skip};

use crate::instance::{BYWASH, Instance, client, hops, host, little_memory, pair, payload, run};

fn server(far: &Host, pair: &Pair, words: &str) -> Instance {
    let name = &pair.far.name;
    Instance::start(far, &format!("{words}|--port|xdp:{name}|--addr|10.9.0.2/24|--addr|fd09::2/64"))
}

#[test]
fn curl_and_wget_get_a_file_of_80_mb_intact() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24", "fd09::1/64"]);
    let folder = tempfile::tempdir().unwrap();
    let (file, got) = (folder.path().join("big.bin"), folder.path().join("got.bin"));
    let bytes = payload(80_000_000);
    std::fs::write(&file, &bytes).unwrap();
    let http = server(&far, &pair, &format!("tcp|http|--file|{}", file.display()));
    let got_name = got.display();
    let programs = [
        ("curl", format!("-sS --max-time 60 -o {got_name} http://10.9.0.2/big.bin")),
        ("curl", format!("-sS --max-time 60 -g -o {got_name} http://[fd09::2]/big.bin")),
        ("wget", format!("-q -T 60 -t 1 -O {got_name} http://10.9.0.2/big.bin")),
    ];
    for (program, words) in programs {
        if run(&near, program, &words).is_none() {
            return skip("curl or wget is not installed");
        }
        let intact = std::fs::read(&got).unwrap() == bytes;
        assert!(intact, "{program} {words}");
        std::fs::remove_file(&got).unwrap();
    }
    // One that broke off goes on where it did, and one that is there is not got again.
    std::fs::write(&got, &bytes[..30_000_000]).unwrap();
    run(&near, "wget", &format!("-q -c -T 60 -t 1 -O {got_name} http://10.9.0.2/big.bin")).unwrap();
    assert!(std::fs::read(&got).unwrap() == bytes, "wget -c");
    let code = |words: &str| run(&near, "curl", &format!("-sS -o /dev/null -w %{{http_code}} {words}"));
    assert_eq!(code(&format!("-z {got_name} http://10.9.0.2/big.bin")).as_deref(), Some("304"));
    assert_eq!(code("-r 80000000- http://10.9.0.2/big.bin").as_deref(), Some("416"));
    assert_eq!(code("http://10.9.0.2/nothing").as_deref(), Some("404"));
    // All that was asked before the client said its last is answered, however slowly it reads.
    const ASKED: usize = 200;
    near.enter(|| {
        let mut stream = std::net::TcpStream::connect(("10.9.0.2", 80)).unwrap();
        let asked = "GET /50000?again HTTP/1.1\r\nHost: a\r\n\r\n".repeat(ASKED);
        std::io::Write::write_all(&mut stream, asked.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut told = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut told).unwrap();
        let answers = told.windows(15).filter(|text| text == b"HTTP/1.1 200 OK").count();
        assert_eq!((answers, told.len() > ASKED * 50_000), (ASKED, true));
    })
    .unwrap();
    // A listener on each engine, and what is left of the connections.
    let sockets = http.told("sockets --json");
    assert!(sockets.as_array().unwrap().iter().any(|row| row["state"] == "LISTEN"), "{sockets}");
    let summary = http.end();
    assert_eq!(summary["requests"], 7 + ASKED, "{summary}");
}

#[test]
fn two_instances_talk_over_a_veth_in_each_language_and_manner() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&[]);
    let http = server(&far, &pair, "tcp|http");
    let place = format!("--force|--port|xdp:{}|--addr|10.9.0.1/24|--addr|fd09::1/64", pair.near.name);
    for to in ["10.9.0.2:80", "[fd09::2]:80"] {
        let (code, closed) = client(
            &near,
            &format!("tcp|load|http|{to}|--connections|8|--depth|4|--requests|2000|--duration|60s|{place}"),
        );
        assert_eq!((code, &closed["requests"]), (Some(0), &2000.into()), "{closed}");
        assert_eq!(closed["latency"]["count"], 2000, "{closed}");
    }
    let (code, open) = client(
        &near,
        &format!(
            "tcp|load|http|10.9.0.2:80|--path|/1000|--connections|4|--rate|500|--requests|500|--duration|60s|{place}"
        ),
    );
    assert_eq!((code, &open["requests"]), (Some(0), &500.into()), "{open}");
    // The last is due after 499 parts of 500; a slow machine takes longer, and none takes less.
    assert!(open["duration_s"].as_f64().unwrap() > 0.9, "500 requests at 500 a second take a second: {open}");
    http.end();
    let upload = server(&far, &pair, "tcp|upload");
    let (code, download) =
        client(&near, &format!("tcp|download|10.9.0.2:19|--streams|4|--duration|1s|{place}"));
    assert_eq!((code, &download["connections"]), (Some(0), &4.into()), "{download}");
    assert!(download["received_bytes"].as_u64().unwrap() > 1_000_000, "{download}");
    let streams = download["streams"].as_array().unwrap();
    let received: Vec<u64> =
        streams.iter().map(|stream| stream["received_bytes"].as_u64().unwrap()).collect();
    assert!(received.len() == 4 && received.iter().all(|bytes| *bytes > 0), "{download}");
    assert_eq!(download["received_bytes"], received.iter().sum::<u64>(), "{download}");
    assert!(streams[3]["stream"] == 3 && streams[3]["received_bits_per_second"].as_u64().unwrap() > 0);
    upload.end();
}

#[test]
fn stats_tell_what_became_of_connections() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let echo = server(&far, &pair, "tcp|echo");
    let open = near.enter(|| {
        let mut stream = std::net::TcpStream::connect(("10.9.0.2", 7)).unwrap();
        std::io::Write::write_all(&mut stream, b"hello").unwrap();
        std::io::Read::read_exact(&mut stream, &mut [0; 5]).unwrap();
        assert!(std::net::TcpStream::connect(("10.9.0.2", 9)).is_err(), "nobody listens");
        stream
    });
    let names = ["tcp_passive_opens", "tcp_established", "tcp_resets_sent", "tcp_attempts_failed", "refused"];
    let counted = |echo: &Instance| {
        let stats = echo.told("stats --json");
        let engine = &stats["engines"][0];
        assert!(engine["tcp_sent"].as_u64().unwrap() >= 3, "{stats}");
        names.map(|name| engine[name].as_u64().unwrap())
    };
    assert_eq!(counted(&echo), [1, 1, 1, 0, 1], "{names:?}");
    drop(open.unwrap());
    let closed = (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        counted(&echo) == [1, 0, 1, 0, 1]
    });
    assert!(closed, "{names:?}: {:?}", counted(&echo));
    echo.end();
}

#[test]
fn the_same_tools_work_on_the_kernels_sockets() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let (code, load) = client(
        &host,
        "tcp|load|http|127.0.0.1:8080|--kernel|--connections|16|--depth|2|--requests|5000|--duration|60s",
    );
    assert_eq!((code, &load["requests"]), (Some(0), &5000.into()), "{load}");
    let (code, download) = client(&host, "tcp|download|127.0.0.1:8080|--kernel|--path|/1000000|--streams|3");
    assert_eq!(code, Some(0), "{download}");
    assert!(download["received_bytes"].as_u64().unwrap() >= 3_000_000, "{download}");
    let (code, missing) = client(&host, "tcp|download|127.0.0.1:8080|--kernel|--path|/nothing");
    assert_eq!((code, &missing["errors"]), (Some(1), &1.into()), "404 is no download: {missing}");
    assert_eq!(http.end()["requests"], 5004);
    let (code, refused) = client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--duration|300ms");
    assert_eq!((code, &refused["met"]), (Some(1), &false.into()), "nobody listens: {refused}");
    // A peer that takes all as fast as it comes does not keep the server from its other connections.
    let upload = Instance::start(&host, "tcp|upload|--kernel");
    let (code, both) = client(&host, "tcp|download|127.0.0.1:19|--kernel|--streams|2|--duration|1s");
    assert_eq!((code, &both["connections"]), (Some(0), &2.into()), "{both}");
    upload.end();
    let echo = Instance::start(&host, "tcp|echo|--kernel");
    let sink = Instance::start(&host, "tcp|sink|--kernel");
    let said = payload(3_000_000);
    for (port, back) in [(7, &said[..]), (9, &[])] {
        let heard = host.enter(|| heard(port, &said)).unwrap();
        assert!(heard == back, "{port}: {} of {} bytes", heard.len(), back.len());
    }
    for server in [echo, sink] {
        let summary = server.end();
        assert_eq!(summary["received_bytes"], said.len(), "{summary}");
    }
}

/// Says it to a server on this host, and then that it is all; what comes back until the server's end.
fn heard(port: u16, said: &[u8]) -> Vec<u8> {
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut heard = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::io::Write::write_all(&mut &stream, said).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        std::io::Read::read_to_end(&mut &stream, &mut heard).unwrap();
    });
    heard
}

/// One connection asks when the last answer is there: so a request takes as long as its answer, and the rate says no other time.
#[test]
fn rates_are_over_the_time_in_which_there_was_something_to_do() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let http = Instance::start(&near, "tcp|http|--kernel");
    let ours = format!("10.9.0.1:80|--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name);
    for (host, place) in [(&far, &*ours), (&near, "127.0.0.1:80|--kernel")] {
        let (code, load) =
            client(host, &format!("tcp|load|http|--requests|500|--path|/1000|--duration|60s|{place}"));
        assert_eq!((code, &load["requests"]), (Some(0), &500.into()), "{load}");
        let number = |of: &serde_json::Value, name: &str| of[name].as_f64().unwrap();
        let each = 1e9 / number(&load, "requests_per_second");
        let all = number(&load, "duration_s") * 1e9;
        assert!((each * 500.0 / all - 1.0).abs() < 0.01, "500 of {each} ns are not {all} ns: {load}");
        let [shortest, longest] = ["min_ns", "max_ns"].map(|name| number(&load["latency"], name));
        assert!((shortest * 0.9..longest * 2.0).contains(&each), "{each} ns each: {load}");
        let bits = number(&load, "received_bits_per_second") * each / 1e9;
        let received = number(&load, "received_bytes") * 8.0 / 500.0;
        assert!((bits / received - 1.0).abs() < 0.01, "{bits} bits for {received}: {load}");
        let (code, download) =
            client(host, &format!("tcp|download|--path|/1000000|--streams|2|--duration|60s|{place}"));
        assert_eq!(code, Some(0), "{download}");
        let all = number(&download, "received_bits_per_second");
        let streams = download["streams"].as_array().unwrap().iter();
        let sum: f64 = streams.map(|stream| number(stream, "received_bits_per_second")).sum();
        assert!((sum / all - 1.0).abs() < 0.01, "{sum} of {all}: {download}");
        let bits = number(&download, "received_bytes") * 8.0;
        let time = bits / number(&download, "duration_s");
        assert!((time / all - 1.0).abs() < 0.01, "{time} bit/s told as {all}: {download}");
    }
    // For people, too: nobody works out a rate of 0.0 s.
    let mut short = near.command(BYWASH).unwrap();
    short.args(["tcp", "load", "http", "127.0.0.1:80", "--kernel", "--requests", "10"]);
    let told = String::from_utf8(short.output().unwrap().stdout).unwrap();
    let time =
        told.split(": ").next().and_then(|time| time.strip_suffix(" ms")).and_then(|ms| ms.parse().ok());
    assert!(time.is_some_and(|ms: f64| ms > 0.0), "{told}");
    http.end();
}

/// A server that takes connections and says nothing: the kernel has them, and nobody reads.
#[test]
fn a_server_that_never_answers_is_no_success() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let silent = host.enter(|| std::net::TcpListener::bind("127.0.0.1:8080")).unwrap().unwrap();
    let (code, open) =
        client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--rate|100|--duration|2s|--connections|2");
    assert_eq!((code, &open["met"], &open["requests"]), (Some(1), &false.into(), &0.into()), "{open}");
    let unanswered = open["unanswered"].as_u64().unwrap();
    assert!((180..=205).contains(&unanswered), "{open}");
    assert_eq!(open["latency"]["count"], unanswered, "{open}");
    let half = open["latency"]["p50_ns"].as_u64().unwrap();
    assert!((800_000_000..1_300_000_000).contains(&half), "{open}");
    assert_eq!(open["unmet"][0], "no request was answered");
    assert_eq!(open["unmet"][1], "100 requests/s were asked for, 1 were reached");
    let [wanted, due, unsent] = ["wanted_requests_per_second", "due", "unsent"].map(|field| &open[field]);
    assert_eq!(
        (wanted, due.as_u64(), unsent.as_u64()),
        (&100.into(), Some(unanswered), Some(unanswered - 2))
    );
    let (code, closed) =
        client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--connections|4|--duration|500ms");
    assert_eq!((code, &closed["unanswered"]), (Some(1), &4.into()), "{closed}");
    let (code, download) = client(&host, "tcp|download|127.0.0.1:8080|--kernel|--duration|300ms");
    assert_eq!((code, &download["unmet"][0]), (Some(1), &"nothing was received".into()), "{download}");
    drop(silent);
    // Programs on the stack are told of the end, too.
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let _silent = near.enter(|| std::net::TcpListener::bind("10.9.0.1:8080")).unwrap().unwrap();
    let place = format!("--force|--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name);
    let (code, ours) =
        client(&far, &format!("tcp|load|http|10.9.0.1:8080|--connections|4|--duration|1s|{place}"));
    assert_eq!(
        (code, &ours["unanswered"], &ours["latency"]["count"]),
        (Some(1), &4.into(), &4.into()),
        "{ours}"
    );
}

/// What the summary says of failures: the counters that are not 0, but for `errors`, and the first reason.
pub(crate) fn failures(summary: &serde_json::Value) -> (Vec<(&str, u64)>, &str) {
    let names =
        ["refused", "reset", "timed_out", "unreachable", "cut_short", "unopened", "wrong", "unwritten"];
    let counted = names.map(|name| (name, summary[name].as_u64().unwrap()));
    let failed: Vec<_> = counted.into_iter().filter(|(_, times)| *times > 0).collect();
    assert_eq!(summary["errors"], failed.iter().map(|(_, times)| times).sum::<u64>(), "{summary}");
    (failed, summary["unmet"][0].as_str().unwrap())
}

#[test]
fn why_a_connection_failed_is_told() {
    let Some(_guard) = lock() else { return };
    let host = host();
    // Nobody listens: it ends by itself, though there is much to do and no time is set.
    let (code, refused) =
        client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--requests|10|--connections|2");
    assert_eq!(code, Some(1), "{refused}");
    assert_eq!(failures(&refused), (vec![("refused", 2)], "2 failed: connection refused"));
    let (code, refused) = client(&host, "tcp|download|127.0.0.1:8080|--kernel|--streams|3");
    assert_eq!(code, Some(1), "{refused}");
    assert_eq!(failures(&refused), (vec![("refused", 3)], "3 failed: connection refused"));
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let missing = "404 Not Found";
    let (_, wrong) = client(&host, "tcp|download|127.0.0.1:8080|--kernel|--path|/nothing");
    assert_eq!(
        failures(&wrong),
        (vec![("wrong", 1)], &*format!("1 failed: wrong answers, the first: HTTP/1.1 {missing}"))
    );
    let (_, wrong) =
        client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--path|/nothing|--requests|3|--duration|60s");
    assert_eq!(
        failures(&wrong),
        (vec![("wrong", 3)], &*format!("3 failed: wrong answers, the first: HTTP/1.1 {missing}"))
    );
    http.end();
    // A server that breaks off what it owes.
    let listener = host.enter(|| std::net::TcpListener::bind("127.0.0.1:8081")).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // With a byte unread the kernel resets the connection.
        assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 1);
    });
    let (_, reset) = client(&host, "tcp|load|http|127.0.0.1:8081|--kernel|--requests|1|--duration|60s");
    server.join().unwrap();
    assert_eq!(failures(&reset), (vec![("reset", 1)], "1 failed: connection reset by the peer"));
}

/// Runs `tcp connect` with nothing to say, and returns what it complains of.
pub(crate) fn connect(host: &Host, words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = host.command(BYWASH).unwrap();
    command.args(["tcp", "connect"]).args(words.split('|')).args(little_memory(words));
    command.args(["--quiet", "--duration", "60s"]).env("XDG_RUNTIME_DIR", folder.path());
    let output = command.stdin(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// What a tool says in text when it is asked how it stands.
fn asked(host: &Host, words: &str) -> String {
    let mut command = host.command(BYWASH).unwrap();
    command.args(words.split('|')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut complaint = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("Ctrl-C ends it") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut complaint, &mut line).unwrap() > 0, "it did not begin");
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let mut told = String::new();
    let mut results = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut results, &mut told).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // What the pipes hold is not read: they take a summary.
    child.wait().unwrap();
    told
}

#[test]
fn who_asks_how_it_stands_is_told_bytes_and_rates() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let upload = Instance::start(&host, "tcp|upload|--kernel");
    let load = asked(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--duration|60s");
    for part in [" requests, ", "/s ", " bytes of payload in, ", "bit/s ", " latency p50 "] {
        assert!(load.contains(part), "{part}: {load}");
    }
    let mut streams = host.command(BYWASH).unwrap();
    streams.args(["tcp", "download", "127.0.0.1:19", "--kernel", "--duration", "300ms", "--streams", "2"]);
    let told = String::from_utf8(streams.output().unwrap().stdout).unwrap();
    for part in ["\n  stream 0: ", "\n  stream 1: ", " bytes of payload in, ", " bit/s in\n"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let download = asked(&host, "tcp|download|127.0.0.1:19|--kernel|--duration|60s");
    let (before, rate) = download.split_once(" bytes of payload in, ").unwrap_or_default();
    let bytes = before.rsplit(' ').next().unwrap_or_default();
    assert!(bytes.parse().is_ok_and(|bytes: u64| bytes > 0) && rate.contains("bit/s"), "{download}");
    http.end();
    upload.end();
}

#[test]
fn connect_says_why_it_could_not() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    assert_eq!(connect(&near, "127.0.0.1:7|--kernel"), "not met: connection refused\n");
    let ours = format!("--port|xdp:{}|--addr|10.9.0.2/24|--force", pair.far.name);
    assert_eq!(connect(&far, &format!("10.9.0.1:7|{ours}")), "not met: connection refused\n");
    // Nobody has that address: after three questions that is known, as with the kernel's sockets.
    let began = std::time::Instant::now();
    assert_eq!(connect(&far, &format!("10.9.0.77:7|{ours}")), "not met: host unreachable\n");
    assert!(began.elapsed().as_secs() < 30, "long before SYNs are given up");
    assert_eq!(connect(&near, "10.9.0.77:7|--kernel"), "not met: host unreachable\n");
}

#[test]
fn a_rate_that_is_not_reached_is_no_success() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let load = "tcp|load|http|127.0.0.1:8080|--kernel|--requests|20k|--rate";
    let (code, short) = client(&host, &format!("{load}|10M"));
    assert_eq!((code, &short["requests"], &short["errors"]), (Some(1), &20_000.into(), &0.into()), "{short}");
    let why = short["unmet"][0].as_str().unwrap();
    assert!(why.starts_with("10000000 requests/s were asked for, "), "{short}");
    http.end();
}

/// One that answers at first: whoever hangs in the middle is told of by the age of what he owes. Who goes on answering until the
/// end is not, though requests are under way then, too.
#[test]
fn a_server_that_stops_answering_is_no_success() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--kernel|--listen|8080");
    let (code, well) =
        client(&host, "tcp|load|http|127.0.0.1:8080|--kernel|--connections|8|--depth|4|--duration|600ms");
    assert_eq!((code, &well["met"]), (Some(0), &true.into()), "{well}");
    http.end();
    let listener = host.enter(|| std::net::TcpListener::bind("127.0.0.1:8081")).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        assert!(std::io::Read::read(&mut stream, &mut asked).unwrap() > 0);
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        while std::io::Read::read(&mut stream, &mut asked).is_ok_and(|n| n > 0) {}
    });
    let (code, hangs) = client(&host, "tcp|load|http|127.0.0.1:8081|--kernel|--duration|1s");
    server.join().unwrap();
    assert_eq!((code, &hangs["requests"], &hangs["unanswered"]), (Some(1), &1.into(), &1.into()), "{hangs}");
    assert!(hangs["unmet"][0].as_str().unwrap().contains("at the end without an answer"), "{hangs}");
    assert_eq!((&hangs["latency"]["unfinished"], &hangs["never_opened"]), (&1.into(), &0.into()), "{hangs}");
}

#[test]
fn what_is_typed_comes_back_from_echo() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let echo = server(&far, &pair, "tcp|echo");
    let sent = payload(3_000_000);
    let mut child = near
        .command(BYWASH)
        .unwrap()
        .args(["tcp", "connect", "10.9.0.2:7", "--kernel", "--quiet", "--duration", "60s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // Closing it ends what is typed, and so the connection.
        scope.spawn(|| {
            std::io::Write::write_all(&mut stdin, &sent).unwrap();
            drop(stdin);
        });
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == sent, "{} of {} bytes", output.stdout.len(), sent.len());
    let traced = run(&near, "traceroute.db", "-n -q 1 -w 2 -m 3 10.9.0.2");
    // One that is still open when the server ends is told so.
    let mut child = near
        .command(BYWASH)
        .unwrap()
        .args(["tcp", "connect", "10.9.0.2:7", "--kernel", "--quiet", "--duration", "60s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"?").unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let began = std::time::Instant::now();
    echo.end();
    assert_eq!(child.wait().unwrap().code(), Some(1), "a reset");
    assert!(began.elapsed().as_secs() < 30, "not by its own end");
    let Some(text) = traced else { return skip("traceroute is not installed") };
    assert_eq!(hops(&text), [(1, "10.9.0.2")], "{text}");
}

/// A router between them cuts what the client sends, which has no "don't fragment". All pieces come to one engine, whichever
/// has the connection.
#[test]
fn pieces_find_the_engine_that_has_their_connection() {
    const EACH: usize = 300_000;
    const CONNECTIONS: usize = 12;
    let Some(_guard) = lock() else { return };
    let cores = bywash_lab::sys::worker::allowed_cores();
    let [first, second, ..] = cores[..] else { return skip("there is one core only") };
    let (near, middle, far) = (host(), host(), Host::new().unwrap());
    let cable = |ends: [&Host; 2], names: [&str; 2], addresses: [&[&str]; 2]| {
        let mut options = PairOptions { neighbours: false, ..PairOptions::default() };
        options.names = names.map(String::from);
        options.addresses = addresses.map(|of| of.iter().map(|text| text.parse().unwrap()).collect());
        Pair::between(ends[0], ends[1], &options).unwrap()
    };
    let left = cable([&near, &middle], ["a", "ra"], [&["10.9.1.2/24"], &["10.9.1.1/24"]]);
    let _right = cable([&middle, &far], ["rb", "b"], [&["10.9.2.1/24"], &[]]);
    middle.sysctl("net.ipv4.ip_forward", "1").unwrap();
    run(&middle, "ip", "link set dev rb mtu 600").unwrap();
    near.sysctl("net.ipv4.ip_no_pmtu_disc", "1").unwrap();
    let gateway = Gateway { index: left.near.index, address: Some("10.9.1.1".parse().unwrap()) };
    near.add_route("0.0.0.0/0".parse().unwrap(), gateway).unwrap();
    let place = "--port|xdp:b|--addr|10.9.2.2/24|--route|default via 10.9.2.1";
    let sink = Instance::start(&far, &format!("tcp|sink|{place}|--cores|{first},{second}"));
    let said = payload(EACH);
    near.enter(|| {
        for _ in 0..CONNECTIONS {
            let mut stream = std::net::TcpStream::connect(("10.9.2.2", 9)).unwrap();
            std::io::Write::write_all(&mut stream, &said).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0, "the sink has read all");
        }
    })
    .unwrap();
    let stats = sink.told("stats --json");
    let summary = sink.end();
    assert_eq!(summary["received_bytes"], CONNECTIONS * EACH, "{summary}");
    let engines = stats["engines"].as_array().unwrap().iter();
    let whole: u64 = engines.map(|of| of["reassembled"].as_u64().unwrap()).sum();
    assert!(whole > 1000 && summary["handed_over"].as_u64().unwrap() > 100, "{whole}: {summary}");
}

#[test]
fn several_engines_share_one_queue() {
    let Some(_guard) = lock() else { return };
    let cores = bywash_lab::sys::worker::allowed_cores();
    let [first, second, ..] = cores[..] else { return skip("there is one core only") };
    let (near, far, pair) = pair(&["10.9.0.1/24", "fd09::1/64"]);
    let http = server(&far, &pair, &format!("tcp|http|--cores|{first},{second}"));
    for to in ["10.9.0.2:80", "[fd09::2]:80"] {
        let (code, load) = client(
            &near,
            &format!("tcp|load|http|{to}|--kernel|--connections|32|--requests|4000|--duration|60s"),
        );
        assert_eq!((code, &load["requests"]), (Some(0), &4000.into()), "{load}");
    }
    let sockets = http.told("sockets --json");
    let mut listeners = sockets.as_array().unwrap().iter().filter(|row| row["state"] == "LISTEN");
    let listener = listeners.next().unwrap();
    assert!(listeners.next().is_none() && listener["engine"].is_null(), "one for both engines: {sockets}");
    assert_eq!(listener["local"], "*:80");
    let summary = http.end();
    assert!(summary["handed_over"].as_u64().unwrap() > 1000, "{summary}");
    // And as clients: the answers must come back to the engine that has asked.
    let kernel = Instance::start(&near, "tcp|http|--kernel");
    let place = format!("--port|xdp:{}|--addr|10.9.0.2/24|--cores|{first},{second}", pair.far.name);
    let (code, load) = client(
        &far,
        &format!("tcp|load|http|10.9.0.1:80|--connections|32|--requests|4000|--duration|60s|{place}"),
    );
    assert_eq!((code, &load["requests"]), (Some(0), &4000.into()), "{load}");
    kernel.end();
}
