//! How connections begin, and begin again, as it shows on the wire.

use std::num::NonZeroU8;
use std::time::Duration;

use bywash_stack::{ConnectionId, Event, Limits, State, TcpError};

use crate::wire::address;
use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn listening(backlog: usize) -> Trace {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, backlog).unwrap();
    t
}

/// The connection that has just been accepted.
#[track_caller]
fn taken(t: &mut Trace) -> ConnectionId {
    let events = t.events();
    let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
    connection
}

/// A connection the peer has opened.
fn accepted(options: &str, clock: &str) -> (Trace, ConnectionId) {
    let mut t = listening(4);
    t.peer(&format!("S 0:0(0) win 30000 <{options}>"));
    assert_eq!(t.output().len(), 1);
    t.pass(ms(20));
    t.peer(&format!(". 1:1(0) ack 1 win 30000 {clock}"));
    t.sends(&[]);
    let id = taken(&mut t);
    (t, id)
}

fn connect_from(t: &mut Trace, port: u16) -> ConnectionId {
    t.ports.1 = 80;
    t.host.stack.connect(t.now, (None, port), (address("10.0.0.2"), 80), &mut t.pool).unwrap()
}

/// Sends `n` bytes with the peer's help, closes, and leaves an entry in TIME-WAIT. Returns our next number on the wire.
fn to_time_wait(t: &mut Trace, id: ConnectionId, n: u32, clock: &str) -> u32 {
    let mut sent = 0;
    while sent < n {
        let bytes = vec![7; (n - sent).min(1000) as usize];
        sent += u32::try_from(t.host.stack.send(t.now, id, &bytes, &mut t.pool).unwrap()).unwrap();
        assert_eq!(t.output().len(), 1);
        t.peer(&format!(". 1:1(0) ack {} win 30000 {clock}", sent + 1));
    }
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    assert_eq!(t.output().len(), 1);
    t.peer(&format!("F. 1:1(0) ack {} win 30000 {clock}", n + 2));
    assert_eq!(t.output().len(), 1);
    assert_eq!(t.host.stack.connections().2, 1);
    t.events();
    t.absolute(n + 2)
}

fn is_after(number: u32, other: u32) -> bool {
    (1..1 << 31).contains(&number.wrapping_sub(other))
}

#[test]
fn only_an_acceptable_segment_completes_a_handshake() {
    let mut t = listening(4);
    t.peer("S 0:0(0) win 30000 <mss 1000,TS 100>");
    let answer = "S. 0:0(0) ack 1 win 65535 <mss 1460,TS ecr 100>";
    t.sends(&[answer]);
    t.peer(". 1:1(0) ack 1 win 30000 <TS 99>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 100>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&[]);
    t.after(ms(1000), &[answer]);
    t.peer(". 70000:70000(0) ack 1 win 30000 <TS 101>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 100>"]);
    t.peer(". 0:0(0) ack 1 win 30000 <TS 101>");
    assert_eq!((t.events(), t.host.stack.connections()), (Vec::new(), (0, 1, 0)));
    for seconds in [2, 4, 8, 16] {
        t.after(ms(seconds * 1000), &[answer]);
    }
    t.pass(ms(33_000));
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0), "it is given up");
}

#[test]
fn data_completes_a_handshake_whose_last_segment_was_lost() {
    let mut t = listening(4);
    t.peer("S 0:0(0) win 300 <mss 1000,TS 100,wscale 7>");
    t.output();
    t.peer("P. 1001:1011(10) ack 1 win 300 <TS 101>");
    t.sends(&[". 1:1(0) ack 1 win 1024 <TS ecr 100>"]);
    let id = taken(&mut t);
    t.peer("P. 1:1001(1000) ack 1 win 300 <TS 101>");
    t.sends(&[". 1:1(0) ack 1011 win 1017 <TS ecr 101>"]);
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_wnd, 300 << 7);
}

#[test]
fn strangers_in_a_handshake_are_answered_once_between_repeats() {
    let mut t = listening(4);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    let answer = "S. 0:0(0) ack 1 win 65535 <mss 1460>";
    t.sends(&[answer]);
    t.peer("R 99999:99999(0) win 0");
    t.sends(&[]);
    t.peer("R 100:100(0) win 0");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.peer("R 200:200(0) win 0");
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&[]);
    t.after(ms(1000), &[answer]);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&[answer]);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 1, 0));
    t.peer(". 1:1(0) ack 1 win 30000");
    taken(&mut t);
}

#[test]
fn a_cookie_without_a_clock_offers_only_what_it_remembers() {
    let mut t = listening(0);
    t.peer("S 0:0(0) win 30000 <mss 1400,sackOK,wscale 9>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 300");
    let id = taken(&mut t);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_mss, info.sack, info.wscale, info.snd_wnd), (1380, false, None, 300));
}

#[test]
fn a_cookie_remembers_that_marks_were_agreed_on() {
    let mut t = listening(0);
    t.peer("SEW 0:0(0) win 30000 <mss 1024,TS 100>");
    t.sends(&["S.E 0:0(0) ack 1 win 65535 <mss 1460,TS ecr 100>"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0), "nothing is remembered");
    t.peer(". 1:1(0) ack 1 win 30000 <TS 101>");
    let id = taken(&mut t);
    assert!(t.host.stack.tcp_info(t.now, id).unwrap().ecn);
    t.send(id, 100);
    t.sends(&["P. [ect0] 1:101(100) ack 1 win 65535 <TS ecr 101>"]);
    // The peer's marks are told, and what it tells of ours slows us down.
    t.peer("P. [ce] 1:11(10) ack 101 win 30000 <TS 102>");
    t.sends(&[".E 101:101(0) ack 11 win 65535 <TS ecr 102>"]);
    let window = t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd;
    t.send(id, 4000);
    assert_eq!(t.output().len(), 4);
    t.peer(".EW 11:11(0) ack 1113 win 30000 <TS 103>");
    assert!(t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd < window);

    // Who has not asked has none, and without a clock nothing would be remembered.
    for (syn, options, answer, ack) in [
        ("S", "mss 1024,TS 100", "S. 0:0(0) ack 1 win 65535 <mss 1460,TS ecr 100>", " <TS 101>"),
        ("SEW", "mss 1024", "S. 0:0(0) ack 1 win 65535 <mss 1460>", ""),
    ] {
        let mut t = listening(0);
        t.peer(&format!("{syn} 0:0(0) win 30000 <{options}>"));
        t.sends(&[answer]);
        t.peer(&format!(". 1:1(0) ack 1 win 30000{ack}"));
        let id = taken(&mut t);
        assert!(!t.host.stack.tcp_info(t.now, id).unwrap().ecn, "{syn} {options}");
        t.send(id, 100);
        let sent = t.output();
        assert!(sent[0].starts_with("P. 1:101(100)"), "{sent:?}");
    }
}

#[test]
fn a_cookie_counts_only_where_cookies_were_sent_lately() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 0).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1400>");
    assert_eq!(t.output().len(), 1);
    t.host.stack.unlisten(listener);
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer(". 1:1(0) ack 1 win 300");
    t.sends(&["R 1:1(0)"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}

#[test]
fn a_lost_syn_leaves_the_window_and_waits_longer_for_data() {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 0);
    let syn = "S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>";
    t.sends(&[syn]);
    t.after(ms(1000), &[syn]);
    t.pass(ms(20));
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_cwnd, info.snd_ssthresh, info.backoff), (10_000, u32::MAX, 0));
    assert_eq!(info.rto, ms(3000));
    t.host.stack.send(t.now, id, &[7; 500], &mut t.pool).unwrap();
    t.sends(&["P. 1:501(500) ack 1 win 65535"]);
    t.after(ms(3000), &["P. 1:501(500) ack 1 win 65535"]);
}

#[test]
fn two_lost_syns_leave_one_segment() {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 0);
    let syn = "S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>";
    t.sends(&[syn]);
    t.after(ms(1000), &[syn]);
    t.after(ms(2000), &[syn]);
    t.pass(ms(20));
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1012,TS 5>");
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_cwnd, info.snd_ssthresh), (1000, u32::MAX));
    assert!(info.rto < ms(1000), "the clock tells which SYN was answered: {:?}", info.rto);

    let mut t = listening(4);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    assert_eq!(t.output().len(), 1);
    for seconds in [1, 2] {
        t.after(ms(seconds * 1000), &["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    }
    t.peer(". 1:1(0) ack 1 win 30000");
    let id = taken(&mut t);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_cwnd, info.snd_ssthresh, info.rto), (1000, u32::MAX, ms(3000)));
}

#[test]
fn out_of_window_is_not_answered_without_limit() {
    let (mut t, _) = accepted("mss 1000", "");
    for segment in ["S -500:-500(0) win 1000", ". 399999:399999(0) ack 1 win 1000"] {
        t.peer(segment);
        t.sends(&[". 1:1(0) ack 1 win 65535"]);
        t.peer(segment);
        t.sends(&[]);
        t.pass(ms(600));
    }
    t.peer(". 0:0(0) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    // Data that comes again: our acknowledgment was lost.
    for _ in 0..2 {
        t.peer(". -9:1(10) ack 1 win 30000");
        t.sends(&[". 1:1(0) ack 1 win 65535"]);
    }
}

#[test]
fn an_older_clock_is_not_answered_without_limit() {
    let (mut t, _) = accepted("mss 1000,TS 100", "<TS 101>");
    t.peer(". 1:1(0) ack 1 win 30000 <TS 99>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 101>"]);
    t.peer(". 1:1(0) ack 1 win 30000 <TS 99>");
    t.sends(&[]);
    t.peer("P. 1:11(10) ack 1 win 30000 <TS 99>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 101>"]);
}

#[test]
fn time_wait_answers_a_fin_each_time_and_others_seldom() {
    let (mut t, id) = accepted("mss 1000", "");
    to_time_wait(&mut t, id, 0, "");
    for _ in 0..2 {
        t.peer("F. 1:1(0) ack 2 win 30000");
        t.sends(&[". 2:2(0) ack 2 win 65535"]);
    }
    for _ in 0..2 {
        t.peer(". 50:50(0) ack 2 win 30000");
        t.sends(&[". 2:2(0) ack 2 win 65535"]);
        t.peer(". 50:50(0) ack 2 win 30000");
        t.peer("S -500:-500(0) win 30000");
        t.sends(&[]);
        t.pass(ms(600));
    }
}

#[test]
fn the_next_connection_of_a_flow_begins_above_the_last() {
    // 20 000 bytes in no time: the clock of initial numbers is far behind.
    let (mut t, id) = accepted("mss 1000", "");
    let end = to_time_wait(&mut t, id, 20_000, "");
    t.peer("S 9000:9000(0) win 30000 <mss 1000>");
    assert_eq!(t.output().len(), 1);
    assert!(is_after(t.absolute(0), end), "{} {end}", t.absolute(0));

    let mut t = Trace::new();
    let id = connect_from(&mut t, 4000);
    t.output();
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1012,TS 100>");
    t.output();
    let end = to_time_wait(&mut t, id, 20_000, "<TS 101>");
    t.pass(ms(1000));
    connect_from(&mut t, 4000);
    assert_eq!(t.output().len(), 1);
    assert!(is_after(t.absolute(0), end), "{} {end}", t.absolute(0));
}

#[test]
fn time_wait_gives_way_by_the_clock() {
    let opened = |before: (&str, &str), syn: &str| {
        let (mut t, id) = accepted(before.0, before.1);
        to_time_wait(&mut t, id, 0, before.1);
        t.peer(syn);
        assert_eq!(t.output().len(), 1);
        t.host.stack.connections() == (0, 1, 0)
    };
    let stamped = ("mss 1000,TS 100", "<TS 101>");
    assert!(opened(stamped, "S -500:-500(0) win 1000 <TS 102>"), "newer by its clock");
    assert!(!opened(stamped, "S 9000:9000(0) win 1000 <TS 99>"), "older by its clock");
    assert!(opened(stamped, "S 9000:9000(0) win 1000 <TS 101>"), "the same moment: by its number");
    assert!(!opened(stamped, "S -500:-500(0) win 1000 <TS 101>"));
    assert!(opened(stamped, "S 9000:9000(0) win 1000"), "no clock now: by its number");
    assert!(!opened(stamped, "S -500:-500(0) win 1000"));
    let bare = ("mss 1000", "");
    assert!(opened(bare, "S -500:-500(0) win 1000 <TS 1>"), "a clock now: always");
    assert!(!opened(bare, "S -500:-500(0) win 1000"));
}

#[test]
fn time_wait_stays_where_nobody_listens() {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 4000);
    t.output();
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
    t.output();
    to_time_wait(&mut t, id, 0, "");
    t.peer("S 9000:9000(0) win 30000 <mss 1000>");
    t.sends(&[". 2:2(0) ack 2 win 65535"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 1));
}

/// The port of a connection that chose it itself.
fn chosen(t: &mut Trace, server: &str) -> u16 {
    let id = t.host.stack.connect(t.now, (None, 0), (address(server), 80), &mut t.pool).unwrap();
    t.host.stack.flow(id).unwrap().local_port
}

#[test]
fn ports_begin_where_nobody_knows_and_go_on_one_by_one() {
    let mut t = Trace::new();
    let ports: Vec<u16> = (0..20).map(|_| chosen(&mut t, "10.0.0.2")).collect();
    let next = |port: u16| if port == 60_999 { 32_768 } else { port + 1 };
    assert!(ports.iter().all(|port| (32_768..=60_999).contains(port)));
    assert!(ports.windows(2).all(|pair| pair[1] == next(pair[0])), "{ports:?}");
    let other = chosen(&mut t, "10.0.0.3");
    assert_ne!(other, next(ports[19]), "each destination has a beginning of its own");
}

#[test]
fn a_port_in_time_wait_is_used_again_where_clocks_tell_the_two_apart() {
    for (options, clock, reused) in [("<mss 1000,TS 100>", "<TS 101>", true), ("<mss 1000>", "", false)] {
        let mut t = Trace::new();
        let first = chosen(&mut t, "10.0.0.2");
        t.output();
        for (port, age) in [(first + 1, ms(0)), (first + 3, ms(2000))] {
            let id = connect_from(&mut t, port);
            t.output();
            t.peer(&format!("S. 0:0(0) ack 1 win 30000 {options}"));
            t.output();
            t.host.stack.close(t.now, id, &mut t.pool).unwrap();
            t.output();
            t.peer(&format!("F. 1:1(0) ack 2 win 30000 {clock}"));
            t.output();
            t.pass(age);
            let may = reused && !age.is_zero();
            if !may {
                let given = t.host.stack.connect(t.now, (None, port), (address("10.0.0.2"), 80), &mut t.pool);
                assert_eq!(given, Err(TcpError::Waits), "{options} {age:?}");
            }
            let now = chosen(&mut t, "10.0.0.2");
            assert_eq!(now, if may { port } else { port + 1 }, "{options} {age:?}");
            t.output();
        }
    }
}

#[test]
fn both_open_at_once_with_all_options() {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 0);
    t.sends(&["S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
    t.peer("S 0:0(0) win 5000 <mss 1000,sackOK,TS 70,wscale 3>");
    let answer = "S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 70,wscale 7>";
    t.sends(&[answer]);
    // Lost: it is repeated. The peer's is lost as well; that it has ours shows in its data.
    t.after(ms(1000), &[answer]);
    t.peer("P. 1:11(10) ack 1 win 500 <TS 71>");
    t.sends(&[". 1:1(0) ack 11 win 1024 <TS ecr 71>"]);
    assert_eq!(t.events(), [Event::Connected(id), Event::Readable(id)]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.sack, info.timestamps, info.wscale), (true, true, Some((3, 7))));
    assert_eq!((info.snd_mss, info.snd_wnd), (988, 500 << 3));
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000,sackOK,TS 72,wscale 3>");
    t.sends(&[". 1:1(0) ack 11 win 1024 <TS ecr 71>"]);
}

#[test]
fn an_answer_to_our_syn_that_was_lost_comes_again() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { timestamps: false, ..Limits::default() });
    let id = connect_from(&mut t, 0);
    let syn = "S 0:0(0) win 65535 <mss 1460,sackOK,wscale 7>";
    t.sends(&[syn]);
    t.after(ms(1000), &[syn]);
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000,sackOK,wscale 3>");
    t.sends(&[". 1:1(0) ack 1 win 1024"]);
    assert_eq!(t.events(), [Event::Connected(id)]);
    // Our acknowledgment is lost: the peer repeats its answer.
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000,sackOK,wscale 3>");
    t.sends(&[". 1:1(0) ack 1 win 1024"]);
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().state, State::Established);
}

#[test]
fn what_comes_with_the_answer_to_our_syn_is_taken_from_its_first_byte() {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 0);
    assert_eq!(t.output().len(), 1);
    t.peer("SP. 0:4(3) ack 1 win 5000 <mss 1000>");
    t.sends(&[". 1:1(0) ack 4 win 65535"]);
    assert_eq!(t.host.stack.readable_bytes(id), Ok(3));
}

/// RFC 7323, 4.3: TS.Recent is of the segment that holds the number which we have acknowledged last, also before we have.
#[test]
fn until_we_have_acknowledged_anything_the_echo_is_of_the_first_byte() {
    for first in [0_i32, -1_000_000_000] {
        let at = |n: i32| first + n;
        let mut t = Trace::new();
        connect_from(&mut t, 0);
        assert_eq!(t.output().len(), 1);
        t.peer(&format!("S. {first}:{first}(0) ack 1 win 5000 <mss 1012,TS 100>"));
        t.peer(&format!(". {}:{}(1000) ack 1 win 5000 <TS 120>", at(1001), at(2001)));
        t.sends(&[&format!(". 1:1(0) ack {} win 65535 <TS ecr 100>", at(1).cast_unsigned())]);

        let mut t = Trace::new();
        connect_from(&mut t, 0);
        assert_eq!(t.output().len(), 1);
        t.peer(&format!("S. {first}:{first}(0) ack 1 win 5000 <mss 1012,TS 100>"));
        t.peer(&format!(". {}:{}(1000) ack 1 win 5000 <TS 110>", at(1), at(1001)));
        t.sends(&[&format!(". 1:1(0) ack {} win 65535 <TS ecr 110>", at(1001).cast_unsigned())]);
    }
}

/// Both have opened at once, and our SYN,ACK is out.
#[test]
fn a_request_that_waited_for_the_handshake_lets_the_acknowledgment_of_its_answer_wait() {
    for waits in [false, true] {
        let mut t = Trace::new();
        let id = connect_from(&mut t, 5000);
        assert_eq!(t.output().len(), 1);
        if waits {
            t.send(id, 100);
        }
        t.sends(&[]);
        t.pass(ms(20));
        t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
        if waits {
            t.sends(&["P. 1:101(100) ack 1 win 65535"]);
        } else {
            t.sends(&[". 1:1(0) ack 1 win 65535"]);
            t.send(id, 100);
            t.sends(&["P. 1:101(100) ack 1 win 65535"]);
        }
        t.pass(ms(20));
        t.peer("P. 1:101(100) ack 101 win 30000");
        if waits {
            t.after(ms(40), &[". 101:101(0) ack 101 win 65535"]);
        } else {
            t.sends(&[". 101:101(0) ack 101 win 65535"]);
        }
    }
}

#[test]
fn the_time_to_live_is_the_program_s() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    let limits = |n: u8| Limits { hop_limit: NonZeroU8::new(n), ..Limits::default() };
    t.host.stack.set_listener_limits(listener, limits(7));
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S. [ttl 7] 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    let id = taken(&mut t);
    t.send(id, 2500);
    let sent = t.output();
    assert!(sent.len() == 3 && sent.iter().all(|segment| segment.contains("[ttl 7]")), "{sent:?}");
    t.peer(". 1:1(0) ack 2501 win 30000");
    t.host.stack.set_connection_limits(t.now, id, limits(200), &mut t.pool).unwrap();
    t.send(id, 10);
    t.sends(&["P. [ttl 200] 2501:2511(10) ack 1 win 65535"]);
    t.host.stack.set_connection_limits(t.now, id, limits(0), &mut t.pool).unwrap();
    t.send(id, 1000);
    t.sends(&["P. 2511:3511(1000) ack 1 win 65535"]);
    t.host.stack.set_connection_limits(t.now, id, limits(1), &mut t.pool).unwrap();
    t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R. [ttl 1] 3511:3511(0) ack 1"]);
}

fn crossed() -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = connect_from(&mut t, 0);
    assert_eq!(t.output().len(), 1);
    t.peer("S 0:0(0) win 5000 <mss 1000>");
    assert_eq!(t.output().len(), 1);
    (t, id)
}

#[test]
fn where_both_open_at_once_what_comes_with_the_answer_is_whole() {
    let (mut t, id) = crossed();
    t.peer("SP. 0:4(3) ack 1 win 5000 <mss 1000>");
    t.sends(&[". 1:1(0) ack 4 win 65535"]);
    assert_eq!(t.host.stack.readable_bytes(id), Ok(3));
}

#[test]
fn a_wrong_acknowledgment_of_our_answer_is_reset_and_nothing_acknowledged() {
    let (mut t, _) = crossed();
    t.peer(". 1:1(0) ack 77 win 5000");
    t.sends(&["R 77:77(0)"]);
}

#[test]
fn a_syn_without_the_timestamps_agreed_on_is_challenged() {
    let mut t = Trace::new();
    t.accept(30_000, "mss 1012,TS 100", "<TS 101>");
    t.peer("S 50:50(0) win 1000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 101>"]);
}

#[test]
fn what_has_not_come_yet_is_missed_since_the_handshake() {
    let mut t = Trace::new();
    t.pass(ms(5000));
    let id = connect_from(&mut t, 0);
    assert_eq!(t.output().len(), 1);
    t.pass(ms(20));
    let missed = |t: &Trace| {
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        (info.last_data_recv, info.last_ack_recv)
    };
    assert_eq!(missed(&t), (ms(20), ms(20)));
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000>");
    t.pass(ms(30));
    t.send(id, 1000);
    t.output();
    t.pass(ms(10));
    t.peer(". 1:1(0) ack 1001 win 5000");
    t.pass(ms(5));
    assert_eq!(missed(&t), (ms(45), ms(5)));
    t.peer("P. 1:11(10) ack 1001 win 5000");
    assert_eq!(missed(&t), (ms(0), ms(0)));
}

#[test]
fn a_fixed_segment_says_nothing_of_the_path() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { mss: Some(500), ..Limits::default() });
    let id = t.accept(30_000, "mss 1460", "");
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_mss, info.pmtu), (500, 1500));
}

#[test]
fn who_answers_no_question_for_marks_says_so() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { answers_ecn: false, ..Limits::default() });
    // Also by a cookie.
    for backlog in [4, 0] {
        t.ports.1 += 1;
        let listener = t.host.stack.listen(None, 80, backlog).unwrap();
        t.peer("SEW 0:0(0) win 30000 <mss 1000>");
        t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
        t.host.stack.unlisten(listener);
    }
}

#[test]
fn what_we_send_has_no_marks_when_a_syn_did_not_ask_for_them() {
    // The answer to the first SYN comes when the second, which does not ask, has gone (RFC 3168, 6.1.1.1).
    for repeated in [false, true] {
        let mut t = Trace::new();
        t.host.stack.set_limits(Limits { ecn: true, timestamps: false, ..Limits::default() });
        let id = connect_from(&mut t, 0);
        t.sends(&["SEW 0:0(0) win 65535 <mss 1460,sackOK,wscale 7>"]);
        if repeated {
            t.after(ms(1000), &["S 0:0(0) win 65535 <mss 1460,sackOK,wscale 7>"]);
        }
        t.peer("S.E 0:0(0) ack 1 win 5000 <mss 1000>");
        t.sends(&[". 1:1(0) ack 1 win 65535"]);
        t.send(id, 100);
        t.sends(&[if repeated {
            "P. 1:101(100) ack 1 win 65535"
        } else {
            "P. [ect0] 1:101(100) ack 1 win 65535"
        }]);
        // The peer's marks are told all the same.
        t.peer("P. [ce] 1:11(10) ack 101 win 5000");
        t.sends(&[".E 1:101(0) ack 11 win 65535".replace("1:101(0)", "101:101(0)").as_str()]);
    }
    // The peer has given up asking.
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("SEW 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S.E 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S.E 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    let events = t.events();
    let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
    t.send(connection, 100);
    t.sends(&["P. 1:101(100) ack 1 win 65535"]);
}

#[test]
fn where_both_open_at_once_the_answer_says_that_windows_are_scaled_by_nothing() {
    let mut t = Trace::new();
    let limits = Limits { receive_max: 65_535, timestamps: false, sack: false, ..Limits::default() };
    t.host.stack.set_limits(limits);
    let id = connect_from(&mut t, 0);
    t.sends(&["S 0:0(0) win 65535 <mss 1460,wscale 0>"]);
    t.peer("S 0:0(0) win 5000 <mss 1000,wscale 3>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,wscale 0>"]);
    t.peer(". 1:1(0) ack 1 win 500");
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_wnd, info.wscale), (4000, Some((3, 0))));
}

#[test]
fn where_both_open_at_once_who_asks_again_is_answered_again() {
    let mut t = Trace::new();
    connect_from(&mut t, 0);
    assert_eq!(t.output().len(), 1);
    t.peer("S 0:0(0) win 5000 <mss 1000>");
    let answer = "S. 0:0(0) ack 1 win 65535 <mss 1460>";
    t.sends(&[answer]);
    t.pass(ms(300));
    t.peer("S 0:0(0) win 5000 <mss 1000>");
    t.sends(&[answer]);
    // Not as often as somebody likes.
    t.peer("S 0:0(0) win 5000 <mss 1000>");
    t.sends(&[]);
    // What lies outside of the window is told what does not.
    t.pass(ms(600));
    t.peer(". 90001:90001(0) ack 1 win 5000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
}

#[test]
fn a_listener_whose_program_is_full_takes_nobody_for_now() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    let answer = "S. 0:0(0) ack 1 win 65535 <mss 1460>";
    t.sends(&[answer]);
    t.host.stack.set_listener_full(listener, true);
    // As if it was lost.
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&[]);
    assert_eq!((t.events(), t.host.stack.connections()), (vec![], (0, 1, 0)));
    t.ports.1 += 1;
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&[]);
    assert_eq!(t.host.stack.counters().tcp_listen_overflows, 2);
    t.ports.1 -= 1;
    t.after(ms(1000), &[answer]);
    t.host.stack.set_listener_full(listener, false);
    t.peer(". 1:1(0) ack 1 win 30000");
    let events = t.events();
    assert!(matches!(events[..], [Event::Accepted { .. }]), "{events:?}");
}

#[test]
fn an_answer_that_was_repeated_because_a_syn_came_again_measures_nothing_but_by_its_clock() {
    for (options, clock, rtt, rto) in [("", "", ms(0), 3000), (",TS 100", "<TS 101>", ms(20), 220)] {
        let mut t = listening(4);
        for later in [900, 20] {
            t.peer(&format!("S 0:0(0) win 30000 <mss 1000{options}>"));
            assert_eq!(t.output().len(), 1);
            t.pass(ms(later));
        }
        t.peer(&format!(". 1:1(0) ack 1 win 30000 {clock}"));
        let id = taken(&mut t);
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        assert_eq!((info.rtt, info.rto, info.snd_cwnd % 10), (rtt, ms(rto), 0), "{options}");
    }
}

#[test]
fn what_is_answered_for_a_connection_has_the_time_to_live_of_its_program() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    let limits = Limits { hop_limit: NonZeroU8::new(7), ..Limits::default() };
    t.host.stack.set_listener_limits(listener, limits);
    for answers_data in [true, false] {
        t.ports.1 += 1;
        t.peer("S 0:0(0) win 30000 <mss 1000>");
        assert_eq!(t.output().len(), 1);
        t.peer(". 1:1(0) ack 77 win 30000");
        t.sends(&["R [ttl 7] 77:77(0)"]);
        t.peer(". 1:1(0) ack 1 win 30000");
        let id = taken(&mut t);
        t.host.stack.close(t.now, id, &mut t.pool).unwrap();
        t.sends(&["F. [ttl 7] 1:1(0) ack 1 win 65535"]);
        if answers_data {
            t.peer("P. 1:11(10) ack 2 win 30000");
            t.sends(&["R [ttl 7] 2:2(0)"]);
        } else {
            // The connection's answer, and that of what is left of it.
            for _ in 0..2 {
                t.peer("F. 1:1(0) ack 2 win 30000");
                t.sends(&[". [ttl 7] 2:2(0) ack 2 win 65535"]);
            }
        }
    }
}

#[test]
fn the_clock_of_a_cookie_measures_nothing() {
    let mut t = listening(0);
    t.peer("S 0:0(0) win 30000 <mss 1400,sackOK,TS 100,wscale 9>");
    assert_eq!(t.output().len(), 1);
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 1 win 300 <TS 101>");
    let id = taken(&mut t);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.rtt, info.min_rtt, info.rto), (ms(0), ms(0), ms(3000)), "some bits of it are options");
    // The first data does.
    t.send(id, 100);
    t.sends(&["P. 1:101(100) ack 1 win 1024 <TS ecr 101>"]);
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 101 win 300 <TS 102>");
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().rtt, ms(20));
}

#[test]
fn a_reset_that_asks_for_a_connection_as_well_is_a_reset() {
    let (mut t, id) = crossed();
    t.peer("SR. 0:0(0) ack 1 win 5000");
    t.sends(&[]);
    let state = t.host.stack.tcp_info(t.now, id).unwrap().state;
    assert_eq!((t.events(), state), (vec![], State::SynReceived), "its number is old");
    let mut t = listening(4);
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    assert_eq!(t.output().len(), 1);
    t.peer("SR 0:0(0) win 0");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 1, 0));
    t.peer("SR 1:1(0) win 0");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}
