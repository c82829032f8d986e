//! The reports of a run as a user sees them: the page in a terminal, metrics by HTTP, the file of delays; and the manual.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod full_pipe;
mod pty;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, HostOptions, lock};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Termios, tcgetattr};

use full_pipe::full_pipe;
use pty::{Pty, read_until_it};

/// Ordinary pages, so that nothing is said about them.
const QUIET_MEMORY: [&str; 4] = ["--huge-pages", "off", "--memory", "16M"];

/// How long a run may take to do what is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    command.args(words.split_whitespace());
    // The kernel's sockets have their own.
    if !words.contains("--kernel") {
        command.args(QUIET_MEMORY);
    }
    command
}

fn bywash(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bywash")).args(words).output().unwrap()
}

fn end(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it did not end");
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bywash-test-{name}-{}", std::process::id()))
}

/// Reads what is shown until it has `part`.
fn read_until(master: &mut File, part: &str) -> String {
    read_until_it(master, part, |text| text.contains(part))
}

fn settings(pty: &Pty) -> Termios {
    tcgetattr(&pty.slave).unwrap()
}

/// Starts it in a terminal.
fn run(pty: &Pty, words: &str) -> Child {
    pty.run(&mut command(words))
}

/// The same, with the terminal as that of a session of its own, as it is a shell's.
fn run_in_its_own(pty: &Pty, words: &str) -> Child {
    let (mut setsid, command) = (Command::new("setsid"), command(words));
    pty.run(setsid.arg("--ctty").arg(command.get_program()).args(command.get_args()))
}

#[test]
fn the_page_gives_the_terminal_back_however_it_ends() {
    for how in ["q", "\x03", "SIGTERM", "its time"] {
        let mut pty = Pty::open();
        let before = settings(&pty);
        let time = if how == "its time" { " --duration 1500ms" } else { "" };
        let mut child = run(&pty, &format!("receive null: --tui{time}"));
        let shown = read_until(&mut pty.master, "packets/s");
        assert!(shown.contains("\x1b[?1049h") && shown.contains("receiving on null:"), "{shown:?}");
        assert!(!settings(&pty).local_modes.contains(LocalModes::ICANON), "keys are read at once");
        match how {
            "SIGTERM" => kill_process(Pid::from_child(&child), Signal::TERM).unwrap(),
            "its time" => {}
            key => pty.master.write_all(key.as_bytes()).unwrap(),
        }
        // The summary comes after the page has gone.
        let rest = read_until(&mut pty.master, "packets in ");
        assert_eq!(end(&mut child).code(), Some(0), "{how}: {rest:?}");
        let (_, after) = rest.rsplit_once("\x1b[?1049l").unwrap();
        assert!(after.contains("receiving on null:"), "what was said on the page: {after:?}");
        let after = settings(&pty);
        assert_eq!(
            (after.local_modes, after.input_modes, after.output_modes, after.control_modes),
            (before.local_modes, before.input_modes, before.output_modes, before.control_modes),
            "{how}"
        );
    }
}

#[test]
fn a_signal_that_ends_it_at_once_gives_the_terminal_back_first() {
    let pipe = temporary("unread");
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    // Whoever reads takes nothing, so that it hangs at its end.
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    for (words, signals, status) in [
        (format!("generate pcap:{}", pipe.display()), &[Signal::INT, Signal::INT][..], (Some(130), None)),
        ("receive null:".into(), &[Signal::QUIT][..], (None, Some(3))),
    ] {
        let mut pty = Pty::open();
        let before = settings(&pty);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -c 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_bywash")]);
        let mut child = pty.run(shell.args(words.split_whitespace()).arg("--tui").args(QUIET_MEMORY));
        read_until(&mut pty.master, "packets/s");
        for signal in signals {
            std::thread::sleep(Duration::from_millis(700));
            kill_process(Pid::from_child(&child), *signal).unwrap();
        }
        read_until(&mut pty.master, "\x1b[?1049l\x1b[?25h");
        let ended = end(&mut child);
        assert_eq!((ended.code(), ended.signal()), status, "{words}");
        assert_eq!(settings(&pty).local_modes, before.local_modes, "{words}");
    }
    drop(reader);
    std::fs::remove_file(pipe).unwrap();
}

#[test]
fn a_page_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    let pid_file = temporary("stopped");
    for how in ["Ctrl-Z", "SIGTSTP", "SIGSTOP"] {
        let mut pty = Pty::open();
        let before = settings(&pty);
        // A shell with jobs: it says when one has stopped, and goes on with it as its user does.
        let words = "bash -c 'echo $$ > \"$0\"; exec \"$@\"' \"$0\" \"$@\"; echo it has stopped; read; fg; echo it has ended";
        let mut shell = Command::new("setsid");
        shell.args(["--ctty", "bash", "-mc", words]).arg(&pid_file).arg(env!("CARGO_BIN_EXE_bywash"));
        let mut shell =
            pty.run(shell.args(["receive", "null:", "--tui", "--duration", "60s"]).args(QUIET_MEMORY));
        read_until(&mut pty.master, "packets/s");
        let pid = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        match how {
            "Ctrl-Z" => pty.master.write_all(b"\x1a").unwrap(),
            "SIGTSTP" => kill_process(pid, Signal::TSTP).unwrap(),
            _ => kill_process(pid, Signal::STOP).unwrap(),
        }
        let stopped = read_until(&mut pty.master, "it has stopped");
        if how != "SIGSTOP" {
            assert!(stopped.contains("\x1b[?1049l"), "{how}: {stopped:?}");
            assert_eq!(settings(&pty).local_modes, before.local_modes, "{how}");
        }
        pty.master.write_all(b"\n").unwrap();
        // All of the page, though nothing of it has changed: also its first line.
        let shown = read_until(&mut pty.master, "packets/s");
        assert!(shown.contains("\x1b[?1049h") && shown.contains("receiving"), "{how}: {shown:?}");
        assert!(!settings(&pty).local_modes.contains(LocalModes::ICANON), "{how}");
        pty.master.write_all(b"q").unwrap();
        let rest = read_until(&mut pty.master, "it has ended");
        assert!(rest.contains("\x1b[?1049l") && rest.contains("packets in "), "{how}: {rest:?}");
        assert_eq!(end(&mut shell).code(), Some(0), "{how}");
    }
    std::fs::remove_file(pid_file).unwrap();
}

#[test]
fn a_page_whose_terminal_has_gone_ends_the_run() {
    for words in ["receive null:", "generate null: --rate 1k", "forward null: null:"] {
        // While the page is drawn, and while it stands and keys are waited for.
        for calm in [Duration::ZERO, Duration::from_millis(300)] {
            let mut pty = Pty::open();
            let mut child = run(&pty, &format!("{words} --tui --duration 60s"));
            read_until(&mut pty.master, "packets/s");
            std::thread::sleep(calm);
            // As when an ssh session ends: who had the other end of the terminal has gone.
            drop(pty);
            assert_eq!(end(&mut child).code(), Some(0), "{words}");
        }
    }
}

#[test]
fn who_has_lost_its_terminal_ends_in_order_however_often_that_is_told() {
    let mut pty = Pty::open();
    let mut child = run_in_its_own(&pty, "receive null: --tui --duration 60s");
    read_until(&mut pty.master, "packets/s");
    std::thread::sleep(Duration::from_millis(300));
    // The kernel tells the session and its foreground, which it is both.
    drop(pty);
    assert_eq!(end(&mut child).code(), Some(0));
}

#[test]
fn a_page_that_can_t_begin_leaves_the_terminal_as_it_was() {
    let output = command("receive null: --tui --duration 1s").stdin(Stdio::null()).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert_eq!(complaint.lines().count(), 1);
    assert!(complaint.contains("--tui: standard input and output are no terminal"), "{complaint}");
    let pty = Pty::open();
    let before = settings(&pty);
    let mut dumb = command("receive null: --tui --duration 1s");
    let output = dumb.env("TERM", "dumb").stderr(Stdio::piped());
    let end_of_it = || Stdio::from(pty.slave.try_clone().unwrap());
    let output = output.stdin(end_of_it()).stdout(end_of_it()).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), settings(&pty).local_modes), (Some(2), before.local_modes));
    assert!(complaint.contains("--tui: the terminal shows lines alone (TERM=dumb)"), "{complaint}");
    // A port that does not open: the reason stands on the ordinary screen.
    let mut pty = Pty::open();
    let before = settings(&pty);
    let mut child = run(&pty, "receive xdp:bw-absent0 --tui");
    let shown = read_until(&mut pty.master, "bywash: ");
    assert_eq!(end(&mut child).code(), Some(2));
    assert!(shown.rsplit_once("\x1b[?1049l").unwrap().1.contains("bywash: "), "{shown:?}");
    assert_eq!(settings(&pty).local_modes, before.local_modes);
}

#[test]
fn enter_at_the_terminal_is_answered_by_a_line_that_stays() {
    let mut pty = Pty::open();
    let mut child = run_in_its_own(&pty, "receive null:");
    read_until(&mut pty.master, "pps");
    pty.master.write_all(b"\n").unwrap();
    // What is typed is shown by the terminal itself: it ends the line that is drawn again and again, which does not by itself.
    read_until_it(&mut pty.master, "a line that stays", |shown| {
        let answer = shown.split_once("\r\n").map_or("", |(_, rest)| rest);
        answer.contains(" received ") && answer.contains("(L1)\r\n")
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end(&mut child).code(), Some(0));
}

#[test]
fn enter_at_the_terminal_is_answered_by_a_download_too() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let from = listener.local_addr().unwrap();
    // It says something until the client goes.
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        while stream.write_all(&[0; 1000]).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut pty = Pty::open();
    let mut child = run_in_its_own(&pty, &format!("tcp download {from} --kernel"));
    read_until(&mut pty.master, "bit/s");
    pty.master.write_all(b"\n").unwrap();
    read_until_it(&mut pty.master, "a line that stays", |shown| {
        let lines: Vec<&str> = shown.split("\r\n").collect();
        // The first has ended with what was typed, and the last has no end yet.
        let mut stay = lines[1..].iter().take(lines.len().saturating_sub(2));
        stay.any(|line| line.contains(" bytes of payload in, ") && line.contains("bit/s"))
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end(&mut child).code(), Some(0));
    server.join().unwrap();
}

#[test]
fn a_signal_is_answered_by_what_has_happened_since_the_last() {
    let mut child = command("generate null: --rate 100k --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = |event: &str| loop {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        if line["event"] == event {
            return line;
        }
    };
    next("interval");
    let mut told = 0.0;
    for _ in 0..2 {
        kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
        let report = next("report");
        let [elapsed, since] = ["elapsed_s", "interval_s"].map(|field| report[field].as_f64().unwrap());
        assert!((elapsed - since - told).abs() < 1e-6, "{report}");
        told = elapsed;
        next("interval");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    next("summary");
    assert_eq!(end(&mut child).code(), Some(0));
}

fn scrape(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_while_each_tool_runs() {
    for (words, series) in [
        ("receive null:", "bywash_queue_packets_total{queue=\"0\"} "),
        ("generate null: --rate 100k", "bywash_tx_packets_total "),
        ("forward null: null:", "bywash_direction_tx_packets_total{from=\"null:\",to=\"null:#2\"} "),
    ] {
        let mut child = command(&format!("{words} --prometheus 127.0.0.1:0 --json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(first["event"], "metrics");
        let address = first["address"].as_str().unwrap();
        // Clients that are not Prometheus: they are answered, and change nothing.
        assert!(scrape(address, "\x00\x01\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let value = || {
            let answer = scrape(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            let mut told = HashSet::new();
            for (one, _) in
                answer.lines().skip_while(|line| !line.is_empty()).filter_map(|line| line.rsplit_once(' '))
            {
                assert!(told.insert(one), "{words}: {one} twice in\n{answer}");
            }
            let line = answer.lines().find_map(|line| line.strip_prefix(series)).map(str::to_owned);
            line.and_then(|value| value.parse::<u64>().ok())
        };
        let until = Instant::now() + PATIENCE;
        while value().is_none_or(|packets| packets == 0) {
            assert!(Instant::now() < until, "{words}: no packet is seen in {series}");
            std::thread::sleep(Duration::from_millis(100));
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert!(lines.last().unwrap().unwrap().contains(r#""event":"summary""#));
        end(&mut child);
    }
}

/// `net.ipv6.bindv6only` says what a socket of IPv6 is for when its program does not.
#[test]
fn all_addresses_are_those_of_ipv4_too() {
    let Some(_guard) = lock() else { return };
    let host = Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap();
    host.sysctl("net.ipv6.bindv6only", "1").unwrap();
    let mut child = host
        .command(env!("CARGO_BIN_EXE_bywash"))
        .unwrap()
        .args("receive null: --prometheus :0 --json".split(' ').chain(QUIET_MEMORY))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let port = first["address"].as_str().unwrap().strip_prefix("[::]:").unwrap();
    for address in ["127.0.0.1", "[::1]"] {
        let address = format!("{address}:{port}");
        let answer = host.enter(|| scrape(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{address}: {answer}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end(&mut child).code(), Some(0));
}

#[test]
fn an_address_that_can_t_be_had_is_exit_code_2() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (address, says) in
        [(address.as_str(), "in use"), ("192.0.2.1:9100", "address"), ("nonsense", "write a port")]
    {
        let output = command(&format!("receive null: --prometheus {address}")).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
        assert!(complaint.contains("--prometheus") && complaint.contains(says), "{complaint}");
    }
}

#[test]
fn delays_are_logged_second_by_second() {
    let path = temporary("hdr");
    let words = format!("receive null: --duration 1200ms --quiet --hdr {}", path.display());
    assert_eq!(command(&words).status().unwrap().code(), Some(0));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "#[Histogram log format version 1.3]");
    // Two distributions in a whole second and the rest of one; empty ones, for null: makes no probes.
    assert_eq!(lines.len(), 4 + 2 * 2, "{text}");
    assert!(lines[5].starts_with("Tag=jitter,"));
    let output = command("receive null: --hdr /nowhere/x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--hdr /nowhere/x: "));
}

#[test]
fn a_log_of_delays_that_nobody_reads_keeps_no_run_from_ending() {
    let pipe = temporary("stalled");
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let start = || {
        let words = format!("receive null: --duration 2500ms --quiet --hdr {}", pipe.display());
        command(&words).stderr(Stdio::piped()).spawn().unwrap()
    };
    let said = |child: Child| {
        let mut said = String::new();
        child.stderr.unwrap().read_to_string(&mut said).unwrap();
        said
    };
    for reads in [false, true] {
        let mut both = File::options().read(true).write(true).open(&pipe).unwrap();
        rustix::io::ioctl_fionbio(&both, true).unwrap();
        while both.write(&[b'\n'; 4096]).is_ok() {}
        let mut reader = File::open(&pipe).unwrap();
        drop(both);
        let (began, mut child) = (Instant::now(), start());
        let mut told = String::new();
        if reads {
            std::thread::sleep(Duration::from_millis(1500));
            reader.read_to_string(&mut told).unwrap();
        }
        let code = end(&mut child).code();
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let (code_is, said_is) =
            if reads { (0, "") } else { (1, "not met: the file of delays ends early: nobody reads them\n") };
        assert_eq!((code, said(child).as_str()), (Some(code_is), said_is));
        // Of whoever reads late nothing is kept back.
        let lines = told.lines().filter(|line| !line.is_empty()).count();
        assert_eq!(lines, if reads { 4 + 2 * 3 } else { 0 }, "{told}");
    }
    let mut child = start();
    assert_eq!(end(&mut child).code(), Some(2));
    assert!(said(child).contains("it is a pipe that nobody reads: begin to read it first"));
    std::fs::remove_file(&pipe).unwrap();
}

#[test]
fn drop_counts_everything_and_judges_nothing() {
    let output = command("receive null: --drop --count 100k --json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((output.status.code(), &summary["met"]), (Some(0), &true.into()));
    assert!(summary["rx_packets"].as_u64().unwrap() >= 100_000);
    assert_eq!((&summary["foreign_packets"], &summary["right_packets"]), (&0.into(), &0.into()));
}

#[test]
fn a_run_whose_reports_nobody_reads_ends_at_its_time() {
    for words in ["receive null: --duration 2500ms", "generate null: --rate 1k --count 2500"] {
        let (_reader, writer) = full_pipe();
        let mut run = command(&format!("{words} --json"));
        let began = Instant::now();
        let mut child = run.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(end(&mut child).code(), Some(1), "{words}");
        let took = began.elapsed();
        assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{words}: {took:?}");
        let mut said = String::new();
        child.stderr.unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "not met: results can't be written: nobody reads them\n", "{words}");
    }
}

#[test]
fn who_reads_again_has_missed_intervals_and_nothing_else() {
    let (mut reader, writer) = full_pipe();
    let mut run = command("receive null: --duration 3500ms --json");
    let mut child = run.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    drop(run);
    std::thread::sleep(Duration::from_millis(2500));
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(end(&mut child).code(), Some(0));
    let lines = told.lines().filter(|line| !line.is_empty());
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!((events[0], *events.last().unwrap()), ("start", "summary"), "{events:?}");
    let last = lines.iter().rfind(|line| line["event"] == "interval").unwrap();
    let [elapsed, since] = ["elapsed_s", "interval_s"].map(|field| last[field].as_f64().unwrap());
    assert!(elapsed > 2.5 && since < 2.0 && events.len() < 5, "{told}");
}

#[test]
fn each_command_has_a_manual_page_with_its_examples() {
    let directory = temporary("man");
    assert_eq!(bywash(&["man", directory.to_str().unwrap()]).status.code(), Some(0));
    let page = |name: &str| std::fs::read_to_string(directory.join(format!("{name}.1"))).unwrap();
    let mut names: Vec<String> = Vec::new();
    for line in page("bywash").lines() {
        names.extend(line.strip_suffix("(1)").map(|name| name.replace('\\', "")));
    }
    for command in ["forward", "receive", "ports", "registers", "bind", "vf", "setup", "cleanup", "man"] {
        assert!(names.contains(&format!("bywash-{command}")), "{command} is not in {names:?}");
    }
    for name in &names {
        let text = page(name);
        assert!(
            text.contains(".TH ") && text.contains(".SH SYNOPSIS") && text.contains(".SH \"EXIT CODES\""),
            "{name}"
        );
    }
    assert!(page("bywash-receive").contains("bywash receive xdp:eth2/4 \\-\\-count 1M"));
    assert!(page("bywash-vf").contains("create") && !page("bywash-vf").contains("vf\\-create(1)"));
    let files = std::fs::read_dir(&directory).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(files, names.len() + 1);
    assert_eq!(bywash(&["man", "/dev/null/x"]).status.code(), Some(2));
}

#[test]
fn completions_name_every_command_and_option() {
    for shell in ["bash", "zsh", "fish"] {
        let output = bywash(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        for word in ["receive", "prometheus", "busy-poll"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(bywash(&["completions", "csh"]).status.code(), Some(2));
}

#[test]
fn no_line_that_changes_is_written_over_what_is_typed_to_be_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    for is_typed in [true, false] {
        let Pty { mut master, slave } = Pty::open();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut connect = command(&format!("tcp connect {to} --kernel --duration 2500ms"));
        connect.stdin(if is_typed { end() } else { Stdio::piped() }).stdout(Stdio::null()).stderr(end());
        let mut child = connect.spawn().unwrap();
        // What is typed ends with the client, and not before.
        let typed = child.stdin.take();
        assert!(self::end(&mut child).success());
        drop((connect, typed, slave));
        let (mut shown, mut buffer) = (Vec::new(), [0; 4096]);
        // A terminal whose other end is closed has an error for who reads it.
        while let Ok(n @ 1..) = master.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..n]);
        }
        let shown = String::from_utf8_lossy(&shown);
        assert_eq!(shown.contains("\x1b[K"), !is_typed, "{shown:?}");
    }
}
