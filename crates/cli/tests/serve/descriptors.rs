//! Processes that are out of descriptors, or would be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bywash_lab::{Host, lock};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::instance::{BYWASH, Instance, host};

/// Ticks that its threads work in a second, of which there are a hundred.
fn worked(instance: &Instance) -> u64 {
    let so_far = || {
        let stat = format!("/proc/{}/stat", instance.pid().as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).unwrap();
        let fields: Vec<u64> = stat.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        fields[13] + fields[14]
    };
    let before = so_far();
    std::thread::sleep(Duration::from_secs(1));
    so_far() - before
}

/// Lets it open no more files.
fn leave_none(instance: &Instance) {
    let none_left = Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(Some(instance.pid()), Resource::Nofile, none_left).unwrap();
}

fn leave_as_many_as_usual(instance: &Instance) {
    prlimit(Some(instance.pid()), Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
}

#[test]
fn without_descriptors_nobody_is_let_in_until_there_are_some() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let serve = Instance::start(&host, "serve|--port|tap:wptap|--addr|10.9.0.2/24");
    leave_none(&serve);
    let mut asker = UnixStream::connect(serve.socket()).unwrap();
    asker.write_all(b"{\"request\":\"stats\"}\n").unwrap();
    let ticks = worked(&serve);
    assert!(ticks < 50, "{ticks}");
    leave_as_many_as_usual(&serve);
    let mut answer = String::new();
    asker.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    serve.end();
}

#[test]
fn one_that_has_no_descriptors_to_begin_with_harms_nobody() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let serve = Instance::start(&host, "serve|--port|tap:wptap|--addr|10.9.0.2/24");
    let folder = serve.socket().parent().unwrap().parent().unwrap().to_owned();
    // Wherever in its beginning it has none left.
    for limit in 3..24 {
        let mut command = host.command("sh").unwrap();
        let line =
            format!("ulimit -n {limit}; exec {BYWASH} serve --port null: --addr 10.9.1.2/24 --duration 1s");
        let output = command.args(["-c", &line]).env("XDG_RUNTIME_DIR", &folder).output().unwrap();
        assert!(!output.status.success(), "{limit}: there is one of that name");
        assert!(serve.socket().exists(), "{limit}: {}", String::from_utf8_lossy(&output.stderr));
        serve.told("stats --json");
    }
    serve.end();
}

fn says(host: &Host) -> TcpStream {
    let mut stream = host.enter(|| TcpStream::connect("127.0.0.1:7")).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"x").unwrap();
    stream
}

fn hears(stream: &mut TcpStream) {
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"x");
}

#[test]
fn a_server_without_descriptors_rests_says_so_and_goes_on_when_there_are_some() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let mut echo = Instance::start(&host, "tcp|echo|--kernel");
    let mut before = says(&host);
    hears(&mut before);
    leave_none(&echo);
    let mut waiting = [says(&host), says(&host)];
    let ticks = worked(&echo);
    assert!(ticks < 50, "{ticks}");
    let warning = echo.warning();
    assert!(warning.starts_with("peers had to wait for a connection: Too many open files"), "{warning}");
    // Who has one already is served.
    before.write_all(b"x").unwrap();
    hears(&mut before);
    leave_as_many_as_usual(&echo);
    waiting.iter_mut().for_each(hears);
    let summary = echo.end();
    let [connections, put_off] = ["connections", "put_off"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(connections, 3, "{summary}");
    assert!((1..1000).contains(&put_off), "{summary}");
}

#[test]
fn a_low_limit_that_may_be_raised_is_none() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let mut command = host.command("sh").unwrap();
    command.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", BYWASH]);
    let echo = Instance::start_by(command, "tcp|echo|--kernel");
    let mut streams: Vec<TcpStream> = (0..100).map(|_| says(&host)).collect();
    streams.iter_mut().for_each(hears);
    let summary = echo.end();
    assert_eq!((&summary["connections"], &summary["put_off"]), (&100.into(), &0.into()), "{summary}");
}
