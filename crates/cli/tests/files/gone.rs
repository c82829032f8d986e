//! Interfaces that go away under the tools: nothing comes by them any more, and nobody waits for it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use bywash_lab::{Host, Lab, PairOptions};

use super::{Place, end, in_host, text};

/// Longer than a tool may take to notice and to end, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(10);

fn delete(host: &Host, name: &str) {
    let index = host.link(name).unwrap().index;
    host.route().delete_link(index).unwrap();
}

#[test]
fn a_tool_whose_interface_is_deleted_says_so_and_ends() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for words in [
        "capture packet:PORT -w out.pcap",
        "receive xdp:PORT --force",
        "forward packet:PORT pcap:out.pcap",
        "generate packet:PORT --rate 1k",
        "replay a.pcap packet:PORT --rate 1k --loops 0",
    ] {
        let lab = Lab::row(2, &PairOptions::default()).unwrap();
        let (host, name) = (&lab.hosts[1], &lab.pairs[0].far.name);
        let place = Place::new();
        std::fs::write(place.0.path().join("a.pcap"), super::pcap(&[0; 5], 60)).unwrap();
        let words = words.replace("PORT", name);
        let mut command = in_host(host, &place, &words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let began = Instant::now();
        delete(host, name);
        let code = end(&mut child);
        assert!(began.elapsed() < SOON, "{words}: {:?}", began.elapsed());
        let told = text(&child.wait_with_output().unwrap().stderr);
        let port = words.split_whitespace().find(|word| word.contains(&format!(":{name}"))).unwrap();
        for line in ["warning", "not met"] {
            assert!(told.contains(&format!("{line}: the interface of {port} is gone")), "{words}: {told}");
        }
        assert_eq!(code, 1, "{words}: {told}");
    }
}
