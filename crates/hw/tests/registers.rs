//! Walks the tables, and compares them with a second transcription made from other sources, which each text names.

#![expect(clippy::unwrap_used, reason = "a line of the transcription that cannot be read must fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use bywash_hw::ixgbe::desc;
use bywash_hw::reg::{Access, Field, Range, Register, find};
use bywash_hw::{igb, ixgbe};

/// Name, registers, end of the addresses and what they are multiples of, second transcription of offsets and fields.
const TABLES: [(&str, &[Register], u32, u32, &str); 5] = [
    ("ixgbe", ixgbe::regs::TABLE, ixgbe::BAR_SIZE, 4, include_str!("ixgbe.txt")),
    ("ixgbevf", ixgbe::vf::TABLE, ixgbe::vf::BAR_SIZE, 4, include_str!("ixgbevf.txt")),
    ("igb", igb::regs::TABLE, igb::BAR_SIZE, 4, include_str!("igb.txt")),
    ("igbvf", igb::vf::TABLE, igb::vf::BAR_SIZE, 4, include_str!("igbvf.txt")),
    ("phy", ixgbe::phy::TABLE, 1 << 21, 1, include_str!("phy.txt")),
];

fn offsets(ranges: &[Range]) -> Vec<u32> {
    ranges.iter().flat_map(|range| (0..range.count).map(|i| range.offset + i * range.stride)).collect()
}

#[test]
fn names_are_unique() {
    for (table, registers, ..) in TABLES {
        let mut seen = BTreeSet::new();
        for register in registers {
            assert!(seen.insert(register.name), "{table}: {} stands twice", register.name);
        }
    }
}

#[test]
fn every_offset_is_aligned_inside_the_bar_and_one_registers_only() {
    for (table, registers, bar, unit, _) in TABLES {
        let mut owners = BTreeMap::new();
        for register in registers {
            let all = offsets(register.ranges).into_iter().chain(offsets(register.aliases));
            for offset in all {
                assert!(
                    offset.is_multiple_of(unit) && offset < bar,
                    "{table}: {} at {offset:#x}",
                    register.name
                );
                if let Some(other) = owners.insert(offset, register.name) {
                    panic!("{table}: {offset:#x} is {other} and {}", register.name);
                }
            }
        }
    }
}

#[test]
fn fields_do_not_overlap_and_reset_values_are_possible() {
    for (table, registers, ..) in TABLES {
        for register in registers {
            let mut used = 0;
            for (name, field) in register.fields {
                assert_eq!(used & field.mask, 0, "{table}: {}.{name} overlaps", register.name);
                used |= field.mask;
            }
            match register.access {
                Access::RC => assert_eq!(register.reset.unwrap_or(0), 0, "{table}: {} counts", register.name),
                Access::RO => assert_eq!(register.writable, 0, "{table}: {}", register.name),
                Access::RW | Access::WO | Access::W1C => {
                    assert_ne!(register.writable, 0, "{table}: {}", register.name)
                }
            }
            assert!(!register.about.is_empty() && register.count() > 0, "{table}: {}", register.name);
        }
    }
}

#[test]
fn every_instance_is_found_by_each_of_its_addresses() {
    for (_, registers, ..) in TABLES {
        for register in registers {
            for index in 0..register.count() {
                let (found, number) = find(registers, register.at(index)).unwrap();
                assert_eq!((found.name, number), (register.name, index));
            }
            for (index, offset) in offsets(register.aliases).into_iter().enumerate() {
                let (found, number) = find(registers, offset).unwrap();
                assert_eq!((found.name, number as usize), (register.name, index));
            }
        }
    }
}

/// Names that no second transcription has, and why.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    (
        "ixgbevf",
        &["VTIVAR.RX_EVEN", "VTIVAR.TX_EVEN", "VTIVAR.RX_ODD", "VTIVAR.TX_ODD"],
        "Barrelfish has one bit, and so no vector 2, which drivers use",
    ),
    (
        "igb",
        &[
            "IVAR.RX_LOW",
            "IVAR.TX_LOW",
            "IVAR.RX_HIGH",
            "IVAR.TX_HIGH",
            "IVAR_MISC.TCP_TIMER",
            "IVAR_MISC.OTHER",
        ],
        "drivers write a vector's number into its byte, with no name for its bits",
    ),
    (
        "igbvf",
        &["IVAR0.RX_EVEN", "IVAR0.TX_EVEN", "IVAR0.RX_ODD", "IVAR0.TX_ODD", "IVAR_MISC.MAILBOX"],
        "likewise",
    ),
    ("phy", &["POWER", "POWER.LOW_POWER"], "the maker's own, and only Intel's drivers use it"),
    ("phy", &["AN_SPEED.SPEED"], "newer PHYs of the maker's have one bit more"),
];

fn is_excepted(table: &str, name: &str) -> bool {
    EXCEPTIONS.iter().any(|(of, names, _)| *of == table && names.contains(&name))
}

/// Lines of a second transcription: a name, and what it has.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').unwrap())
}

/// Registers of a second transcription: `NAME 0x1000 + 0x40*0..63, 0xd000 + 0x40*0..63`.
fn second(text: &str) -> BTreeMap<String, Vec<u32>> {
    let mut all = BTreeMap::new();
    for (name, ranges) in lines(text).filter(|(name, _)| !name.contains('.')) {
        let mut instances = Vec::new();
        for range in ranges.split(',') {
            let (offset, rest) = range.split_once('+').unwrap_or((range, "4*0..0"));
            let (stride, numbers) = rest.trim().split_once("*0..").unwrap();
            let (offset, stride) = (number(offset.trim()), number(stride));
            instances.extend((0..=number(numbers)).map(|i| offset + i * stride));
        }
        assert!(all.insert(name.to_owned(), instances).is_none(), "{name} stands twice");
    }
    all
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// Names and numbers of a second transcription: `NAME.FIELD 0x0000ff00`, the field's bits, or a value.
fn second_numbers(text: &str, is_ours: fn(&str) -> bool) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for (name, value) in lines(text).filter(|(name, _)| is_ours(name)) {
        assert!(all.insert(name.to_owned(), number(value.trim())).is_none(), "{name} stands twice");
    }
    all
}

/// What is wrong between what `hw` has and a second transcription: every name must be in both, with the same value, but for
/// exceptions, which must be needed.
fn differences<T: PartialEq + std::fmt::Debug>(
    table: &str,
    first: &BTreeMap<String, T>,
    second: &BTreeMap<String, T>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, value) in first {
        match (second.get(name), is_excepted(table, name)) {
            (None, false) => wrong.push(format!("{table}: {name} has no second transcription")),
            (Some(other), false) if other != value => {
                wrong.push(format!("{table}: {name} is {value:x?}, the second time {other:x?}"));
            }
            (Some(other), true) if other == value => {
                wrong.push(format!("{table}: {name} is no exception: both agree"))
            }
            _ => {}
        }
    }
    let unknown = second.keys().filter(|name| !first.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("{table}: {name} is in the second transcription alone")));
    wrong
}

#[test]
fn two_transcriptions_agree() {
    let mut wrong = Vec::new();
    for (table, registers, .., text) in TABLES {
        let named = |register: &Register| (register.name.to_owned(), offsets(register.ranges));
        let first = registers.iter().map(named).collect();
        wrong.extend(differences(table, &first, &second(text)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn fields_of_two_transcriptions_agree() {
    let mut wrong = Vec::new();
    for (table, registers, .., text) in TABLES {
        let fields = registers.iter().flat_map(|register| {
            register.fields.iter().map(|(name, field)| (format!("{}.{name}", register.name), field.mask))
        });
        let first = fields.collect();
        wrong.extend(differences(table, &first, &second_numbers(text, |name| name.contains('.'))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every exception names something that there is.
#[test]
fn exceptions_are_of_names_that_exist() {
    for (table, names, why) in EXCEPTIONS {
        assert!(!why.is_empty());
        let (_, registers, ..) = TABLES.iter().find(|(name, ..)| name == table).unwrap();
        for name in *names {
            let (register, field) = name.split_once('.').unwrap_or((name, ""));
            let register = registers.iter().find(|entry| entry.name == register).unwrap();
            assert!(field.is_empty() || register.fields.iter().any(|(entry, _)| *entry == field), "{name}");
        }
    }
}

type Fields = (&'static str, &'static [(&'static str, Field)]);
type Values = (&'static str, &'static [(&'static str, u32)]);

/// Descriptors' fields and values, and messages, by module.
const FIELDS: [Fields; 4] = [
    ("rx.", desc::rx::TABLE),
    ("rx_legacy.", desc::rx_legacy::TABLE),
    ("tx.", desc::tx::TABLE),
    ("context.", desc::context::TABLE),
];
const VALUES: [Values; 8] = [
    ("", desc::DESCTYPES),
    ("tx.", desc::tx::VALUES),
    ("context.", desc::context::VALUES),
    ("rss_type.", desc::rss_type::TABLE),
    ("packet_type.", desc::packet_type::TABLE),
    ("message.", ixgbe::vf::message::TABLE),
    ("xcast.", ixgbe::vf::xcast::TABLE),
    ("version.", &ixgbe::vf::API_VERSIONS),
];

fn by_name(fields: &[Fields], values: &[Values]) -> BTreeMap<String, u32> {
    let fields = fields.iter().flat_map(|(module, table)| {
        table.iter().map(move |(name, field)| (format!("{module}{name}"), field.mask))
    });
    let values = values.iter().flat_map(|(module, table)| {
        table.iter().map(move |(name, value)| (format!("{module}{name}"), *value))
    });
    fields.chain(values).collect()
}

#[test]
fn descriptors_and_messages_of_two_transcriptions_agree() {
    let first = by_name(&FIELDS, &VALUES);
    let second = second_numbers(include_str!("ixgbe-descriptors.txt"), |_| true);
    let wrong = differences("ixgbe-descriptors", &first, &second);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Of the tables that both families share, the 82576's sources need not have everything.
#[test]
fn descriptors_and_messages_of_the_82576_agree() {
    let own = by_name(&[("igb_rx.", igb::rx::TABLE)], &[("igbvf.", igb::vf::message::TABLE)]);
    let second = second_numbers(include_str!("igb-descriptors.txt"), |_| true);
    let mut first = by_name(&FIELDS, &VALUES);
    first.retain(|name, _| second.contains_key(name));
    first.extend(own);
    let wrong = differences("igb-descriptors", &first, &second);
    assert!(wrong.is_empty() && second.len() > 60, "{wrong:#?}");
}
