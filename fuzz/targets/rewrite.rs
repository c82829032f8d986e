//! What `replay` does to packets: any rewriting of any bytes, and one that changes nothing does not.
#![no_main]

use std::sync::LazyLock;

use bywash_apps::replay::{Map, PortMap, Rewrite, Vlan};
use bywash_wire::Mac;
use libfuzzer_sys::fuzz_target;

static REWRITES: LazyLock<Vec<Rewrite>> = LazyLock::new(|| {
    let map = |text: &str| -> Map { text.parse().unwrap_or_else(|error| panic!("{text}: {error}")) };
    let port = |text: &str| -> PortMap { text.parse().unwrap_or_else(|error| panic!("{text}: {error}")) };
    let all = Rewrite {
        src_mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        dst_mac: Some(Mac([2, 0, 0, 0, 0, 2])),
        src_ip: vec![map("0.0.0.0/1=128.0.0.0/1"), map("::/1=8000::/1")],
        dst_ip: vec![map("10.0.0.0/8=172.0.0.0/8"), map("fd00::/8=fc00::/8")],
        src_port: vec![port("80=8080")],
        dst_port: vec![port("53=5353")],
        ..Rewrite::default()
    };
    vec![
        Rewrite { vlan: Some(Vlan::Set(7)), ..all.clone() },
        Rewrite { vlan: Some(Vlan::Remove), fix_checksums: true, ..all },
        Rewrite { fix_checksums: true, ..Rewrite::default() },
    ]
});

fuzz_target!(|input: &[u8]| {
    for rewrite in REWRITES.iter() {
        for is_cut in [false, true] {
            let mut packet = input.to_vec();
            rewrite.apply(&mut packet, is_cut);
            assert!(packet.len().abs_diff(input.len()).is_multiple_of(4), "more than tags came or went");
            if *rewrite == REWRITES[2] && !is_cut {
                let right = packet.clone();
                rewrite.apply(&mut packet, is_cut);
                assert_eq!(packet, right, "a right checksum was changed");
            }
        }
    }
    let mut packet = input.to_vec();
    Rewrite::default().apply(&mut packet, false);
    assert_eq!(packet, input);
});
