//! The matcher on packets of any bytes, whole and cut: expressions that between them reach every way to walk a packet.
#![no_main]

use std::sync::LazyLock;

use bywash_filter::{Expression, NoNames, Options};
use libfuzzer_sys::fuzz_target;

static EXPRESSIONS: LazyLock<Vec<Expression>> = LazyLock::new(|| {
    let options = Options { names: &NoNames, netmask: Some(std::net::Ipv4Addr::new(255, 255, 255, 0)) };
    let lines = include_str!("../seeds/expressions.txt").lines().filter(|line| !line.is_empty());
    lines.map(|line| Expression::new(line, &options).unwrap_or_else(|error| panic!("{error}"))).collect()
});

fuzz_target!(|input: &[u8]| {
    let Some((&[more], packet)) = input.split_last_chunk().map(|(packet, more)| (more, packet)) else {
        return;
    };
    for expression in EXPRESSIONS.iter() {
        let whole = expression.matches(packet);
        assert_eq!(whole, expression.matches_len(packet, packet.len()), "{expression}");
        std::hint::black_box(expression.matches_len(packet, packet.len() + usize::from(more)));
    }
});
