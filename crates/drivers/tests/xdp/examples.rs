//! The examples, as their first lines say: one sends what the other receives.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use bywash_lab::PairOptions;

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
