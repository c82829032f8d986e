//! The filter's page in a terminal: rules, who is above limits and who is blocked, while it happens.

use std::io::Write;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{BYWASH, Bed, Untouched, arguments};
use crate::pty::{Pty, SIZE, read_until_it};

const RULES: &str = r#"
[[rule]]
name = "blocking"
to_ports = [8]
action = "limit"
rate = 100
per = "source/24"
block_seconds = 600
[[rule]]
name = "calm"
to_ports = [9]
action = "limit"
rate = 10
per = "source/24"
[[rule]]
name = "dropped"
to_ports = [10]
action = "drop"
"#;

#[test]
fn the_page_shows_rules_and_who_floods_and_gives_the_terminal_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let mut pty = Pty::open();
    let words =
        format!("filter xdp:left --rules {} --tui --huge-pages off --memory 32M", bed.rules(RULES).display());
    let mut filter = pty.run(bed.lab.hosts[1].command(BYWASH).unwrap().args(arguments(&words)));
    let mut written = read_until_it(&mut pty.master, "the page", |written| written.contains("packets/s"));
    bed.flood("--dport 10 --src 10.9.3.0/24 --rate 20k --count 3000");
    bed.flood("--dport 9 --src 10.9.2.0/24 --rate 20k --count 3000");
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 6000");
    // A table is from the line with its name to the next one's; a row is in it when its line has all of this.
    let is_there = |lines: &[String], table: &str, row: &[&str]| {
        let from = lines.iter().position(|line| line.starts_with(&format!(" {table}")));
        let rows = lines.iter().skip(from.map_or(lines.len(), |from| from + 1));
        rows.take_while(|line| !line.starts_with(' ')).any(|line| row.iter().all(|part| line.contains(part)))
    };
    read_until_shown(&mut pty, &filter, &mut written, |lines| {
        is_there(lines, "rules", &["dropped drop"])
            && is_there(lines, "heavy_hitters", &["calm 10.9.2.0/24"])
            && is_there(lines, "blocks", &["blocking 10.9.1.0/24"])
    });
    pty.master.write_all(b"q").unwrap();
    let rest = read_until_it(&mut pty.master, "the summary", |rest| rest.contains("filtered for"));
    assert!(rest.contains("\x1b[?1049l"), "the terminal is given back: {rest:?}");
    assert_eq!(filter.wait().unwrap().code(), Some(0));
}

#[test]
fn the_page_says_where_the_rules_are_also_when_they_have_moved() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let mut pty = Pty::open();
    let drop = "[[rule]]\nname = \"dropped\"\nto_ports = [10]\naction = \"drop\"\n";
    let rules = bed.rules(drop).display().to_string();
    let words = format!("filter xdp:left --rules {rules} --tui --huge-pages off --memory 32M");
    let mut filter = pty.run(bed.lab.hosts[1].command(BYWASH).unwrap().args(arguments(&words)));
    let mut written = String::new();
    read_until_shown(&mut pty, &filter, &mut written, |lines| lines[0].contains("xdp:left (TCX)"));
    bed.rules(RULES);
    read_until_shown(&mut pty, &filter, &mut written, |lines| {
        lines[0].contains("native XDP") && lines.iter().any(|line| line.contains("'calm' is in user space"))
    });
    pty.master.write_all(b"q").unwrap();
    read_until_it(&mut pty.master, "the summary", |rest| rest.contains("filtered for"));
    assert_eq!(filter.wait().unwrap().code(), Some(0));
}

/// Reads until the lines on the terminal are so.
fn read_until_shown(pty: &mut Pty, filter: &Child, written: &mut String, is_so: impl Fn(&[String]) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let more = read_until_it(&mut pty.master, "more", |more| !more.is_empty());
        written.push_str(&more);
        let lines = lines(written);
        if is_so(&lines) {
            break;
        }
        if Instant::now() > until {
            kill_process(Pid::from_child(filter), Signal::KILL).unwrap();
            panic!("{}", lines.join("\n"));
        }
    }
}

#[test]
fn a_page_whose_terminal_has_gone_ends_the_filter_in_order() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let untouched = Untouched::now(&bed.lab.hosts[1]);
    let mut pty = Pty::open();
    let audit = bed.folder.path().join("audit.log");
    let words = format!(
        "filter xdp:left --rules {} --audit {} --tui --huge-pages off --memory 32M",
        bed.rules(RULES).display(),
        audit.display()
    );
    let mut filter = pty.run(bed.lab.hosts[1].command(BYWASH).unwrap().args(arguments(&words)));
    read_until_it(&mut pty.master, "the page", |written| written.contains("packets/s"));
    // It is drawn by then, and not again for a while.
    std::thread::sleep(Duration::from_millis(300));
    drop(pty);
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = filter.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            filter.kill().unwrap();
            filter.wait().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
    assert!(std::fs::read_to_string(audit).unwrap().contains("\"event\":\"stop\""));
    untouched.check();
}

/// The lines that stand on the terminal after all this: a page writes only what has changed, so that what it shows is not in one
/// piece in what it writes.
fn lines(written: &str) -> Vec<String> {
    let (rows, columns) = (usize::from(SIZE.0), usize::from(SIZE.1));
    let mut cells = vec![vec![' '; columns]; rows];
    let (mut row, mut column) = (0, 0);
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => {
                // ESC [ and parameters, up to a letter: only places, H, and an empty screen, J, matter here.
                let mut parameters = String::new();
                let end = characters.by_ref().skip(1).find(|character| {
                    let is_end = character.is_ascii_alphabetic();
                    parameters.extend((!is_end).then_some(*character));
                    is_end
                });
                let mut numbers = parameters.split(';').map(|number| number.parse().unwrap_or(1));
                match end {
                    Some('H') => {
                        let mut next = || numbers.next().unwrap_or(1).max(1) - 1;
                        (row, column) = (next(), next());
                    }
                    Some('J') => cells.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            _ => {
                if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = character;
                }
                column += 1;
            }
        }
    }
    cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
}
