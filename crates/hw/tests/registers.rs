//! Walks the register tables, and compares them with a second transcription made from other sources.

#![expect(clippy::unwrap_used, reason = "a line of the transcription that cannot be read must fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use bywash_hw::reg::{Access, Range, Register, find};
use bywash_hw::{igb, ixgbe};

const TABLES: [(&str, &[Register], u32, &str); 4] = [
    ("ixgbe", ixgbe::regs::TABLE, ixgbe::BAR_SIZE, include_str!("ixgbe.txt")),
    ("ixgbevf", ixgbe::vf::TABLE, ixgbe::vf::BAR_SIZE, include_str!("ixgbevf.txt")),
    ("igb", igb::regs::TABLE, igb::BAR_SIZE, include_str!("igb.txt")),
    ("igbvf", igb::vf::TABLE, igb::vf::BAR_SIZE, include_str!("igbvf.txt")),
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
    for (table, registers, bar, _) in TABLES {
        let mut owners = BTreeMap::new();
        for register in registers {
            let all = offsets(register.ranges).into_iter().chain(offsets(register.aliases));
            for offset in all {
                assert!(offset % 4 == 0 && offset < bar, "{table}: {} at {offset:#x}", register.name);
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

/// Lines of a second transcription: a name, and what it has.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').unwrap())
}

/// Registers of the second transcription: `NAME 0x1000 + 0x40*0..63, 0xd000 + 0x40*0..63`.
fn second(text: &str) -> BTreeMap<&str, Vec<u32>> {
    let mut all = BTreeMap::new();
    for (name, ranges) in lines(text).filter(|(name, _)| !name.contains('.')) {
        let mut instances = Vec::new();
        for range in ranges.split(',') {
            let (offset, rest) = range.split_once('+').unwrap_or((range, "4*0..0"));
            let (stride, numbers) = rest.trim().split_once("*0..").unwrap();
            let (offset, stride) = (number(offset.trim()), number(stride));
            instances.extend((0..=number(numbers)).map(|i| offset + i * stride));
        }
        assert!(all.insert(name, instances).is_none(), "{name} stands twice");
    }
    all
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

#[test]
fn two_transcriptions_agree() {
    for (table, registers, _, text) in TABLES {
        let mut second = second(text);
        for register in registers {
            let other = second.remove(register.name);
            let other =
                other.unwrap_or_else(|| panic!("{table}: {} is missing in {table}.txt", register.name));
            assert_eq!(offsets(register.ranges), other, "{table}: {}", register.name);
        }
        assert!(second.is_empty(), "{table}.txt has more: {:?}", second.keys());
    }
}

/// Fields of the second transcription by register: `NAME.FIELD 0x0000ff00`, the field's bits.
fn second_fields(text: &str) -> BTreeMap<&str, BTreeMap<&str, u32>> {
    let mut all: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (name, mask) in lines(text) {
        let Some((register, field)) = name.split_once('.') else { continue };
        let twice = all.entry(register).or_default().insert(field, number(mask.trim()));
        assert!(twice.is_none(), "{name} stands twice");
    }
    all
}

/// Of registers that have fields in both.
#[test]
fn fields_of_two_transcriptions_agree() {
    let mut compared = Vec::new();
    for (table, registers, _, text) in TABLES {
        for (name, second) in second_fields(text) {
            let register = registers.iter().find(|register| register.name == name);
            let register = register.unwrap_or_else(|| panic!("{table}: {name} is in {table}.txt alone"));
            let first: BTreeMap<&str, u32> =
                register.fields.iter().map(|(name, field)| (*name, field.mask)).collect();
            assert_eq!(first, second, "{table}: {name}");
            compared.push(name);
        }
    }
    assert_eq!(compared, ["ETQF", "FTQF", "IMIR", "IMIREXT", "SPQF"]);
}
