//! The examples, as their first lines say: one sends what the other receives.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use bywash_lab::{Host, Pair, PairOptions};

use crate::setup::cable;

/// A built example: `cargo test` puts them beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn the_sender_sends_and_the_receiver_receives_what_it_names() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut receive = Command::new(example("receive"));
    receive.args(["xdp:left/0/rx", "ether proto 0x88b5"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let receiver = cable.far().enter(|| receive.spawn()).unwrap().unwrap();
    let sent =
        cable.near().enter(|| Command::new(example("send")).arg("xdp:right/0").output()).unwrap().unwrap();
    assert!(sent.status.success() && text(&sent).contains(" packets sent, 0 under way"), "{}", text(&sent));
    let received = text(&receiver.wait_with_output().unwrap());
    assert!(received.contains("60 bytes from 00:00:00:00:00:00"), "{received}");
    assert!(!received.contains("\n0 packets received"), "{received}");
}

#[test]
fn the_forwarder_gives_one_ports_packets_to_the_other() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let [first, middle, last] = [(); 3].map(|()| Host::new().unwrap());
    // Without addresses: it takes all packets of its interfaces.
    let options = PairOptions { addresses: Default::default(), ..PairOptions::default() };
    let _cables =
        [(&first, &middle), (&middle, &last)].map(|(near, far)| Pair::between(near, far, &options).unwrap());
    let start = |host: &Host, name: &str, arguments: &[&str]| {
        let mut command = Command::new(example(name));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        host.enter(|| command.spawn()).unwrap().unwrap()
    };
    let forwarder = start(&middle, "forward", &["xdp:left", "xdp:right"]);
    // It runs for ten seconds, others for one: one of these finds it at work.
    let mut received = 0;
    for _ in 0..4 {
        let receiver = start(&last, "receive", &["xdp:left", "ether proto 0x88b5"]);
        let sent = start(&first, "send", &["xdp:right"]).wait_with_output().unwrap();
        assert!(sent.status.success(), "{}", text(&sent));
        let seen = text(&receiver.wait_with_output().unwrap());
        received += seen.lines().filter(|line| line.starts_with("60 bytes from 00:00:00:00:00:00")).count();
    }
    let output = forwarder.wait_with_output().unwrap();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    // From the left to the right, and back, where nobody sends such packets.
    let ways: Vec<Vec<usize>> = told
        .lines()
        .filter(|line| line.ends_with(" sent"))
        .map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect())
        .collect();
    let [there, back] = ways.try_into().unwrap();
    assert!(
        there[0] >= there[1] && there[1] >= received && received > 0,
        "{there:?}, {received} came: {told}"
    );
    assert!(back[0] < 1000, "{back:?}");
}

#[test]
fn what_an_example_cannot_do_is_one_line() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    for name in ["send", "receive"] {
        let output =
            cable.near().enter(|| Command::new(example(name)).arg("xdp:absent/0").output()).unwrap().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.starts_with("xdp:absent/0: there is no interface") && text.lines().count() == 1,
            "{text}"
        );
    }
}
