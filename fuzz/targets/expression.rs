//! Filter expressions: whatever is typed is refused with its place or can be run, by the matcher and as eBPF.
#![no_main]

use bywash_filter::xdp::{Maps, Steering, Take};
use bywash_filter::{Expression, NoNames, Options};
use libfuzzer_sys::fuzz_target;

/// An ordinary packet, to run what was read.
const PACKET: &[u8] = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0E\0\0(\0\0@\0@\x06\0\0\n\0\0\x01\n\0\0\x02\
                        \x04\0\0P\0\0\0\0\0\0\0\0P\x02\x20\0\0\0\0\0";

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Expression::new(text, &Options { names: &NoNames, netmask: None }) {
        Err(error) => drop(std::hint::black_box(error.to_string())),
        Ok(expression) => {
            std::hint::black_box(expression.matches(PACKET));
            std::hint::black_box(expression.matches_len(&PACKET[..20], PACKET.len()));
            let maps = Maps {
                sockets: 1,
                longest: 2048,
                heartbeat: 2,
                queues: 1,
                decides_others: false,
                counters: 3,
            };
            let take = Take::Matching(&expression);
            // One that is too long for a program is an error, and no panic.
            let _ = Steering { take, never_take: None, maps, hung_after_jiffies: 100, buff: None }.program();
        }
    }
});
