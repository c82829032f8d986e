//! Compares what an access to a register does, which bits a write changes and what a reset leaves with a second transcription,
//! made from other sources, which each text names.

#![expect(clippy::unwrap_used, reason = "a line of the transcription that cannot be read must fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use bywash_hw::reg::{Access, Register};
use bywash_hw::{igb, ixgbe};

/// Name, registers, second transcription, and how many facts are in it: that one is gone which says zero could go unnoticed.
const TABLES: [(&str, &[Register], &str, usize); 5] = [
    ("ixgbe", ixgbe::regs::TABLE, include_str!("ixgbe-values.txt"), 334),
    ("ixgbevf", ixgbe::vf::TABLE, include_str!("ixgbevf-values.txt"), 42),
    ("igb", igb::regs::TABLE, include_str!("igb-values.txt"), 128),
    ("igbvf", igb::vf::TABLE, include_str!("igbvf-values.txt"), 44),
    ("phy", ixgbe::phy::TABLE, "", 0),
];

/// What stands in the tables alone, by table and kind, and why. All that the second transcriptions do not have is here:
/// access, which every register has; a mask where the table gives one, and a reset value where it is not zero.
const ALONE: &[(&str, &str, &[&str], &str)] = &[
    (
        "ixgbe",
        "access",
        &["EICS"],
        "Barrelfish has it write-only; Linux's driver reads it, as an erratum wants",
    ),
    (
        "ixgbe",
        "access",
        &["FDIRFREE"],
        "Barrelfish has it writable; the NIC counts in it, and no driver writes to it",
    ),
    (
        "ixgbe",
        "access",
        &["LSECTXCNT", "LSECRXCNT"],
        "Vigor has them read-only, after the datasheet's headings, but also GPRC, which Intel's driver clears by reading",
    ),
    (
        "ixgbe",
        "access",
        &[
            "HICR",
            "FWSTS",
            "EIMS_EX",
            "RXMTRL",
            "TIPG",
            "SECTXBUFFAF",
            "MACC",
            "PFVMECM",
            "TSYNCRXCTL",
            "RXSTMPH",
            "TSYNCTXCTL",
            "TXSTMPH",
            "SYSTIML",
            "SYSTIMH",
            "TIMINCA",
            "WUC",
            "WUFC",
            "WUS",
            "IPSTXIDX",
            "IPSTXSALT",
            "IPSTXKEY",
            "IPSRXIDX",
            "IPSRXIPADDR",
            "IPSRXSPI",
            "IPSRXIPIDX",
            "IPSRXKEY",
            "IPSRXSALT",
            "IPSRXMOD",
        ],
        "none of the sources says it",
    ),
    ("ixgbe", "mask", &["FDIRCTRL"], "no source says whether INIT_DONE can be written"),
    ("ixgbe", "mask", &["RDRXCTL"], "Intel's drivers set bits in it that all others call reserved"),
    (
        "ixgbe",
        "reset",
        &["STATUS"],
        "GIO is set in QEMU's model of the 82576, and Linux's driver waits for it to go; Vigor's has it clear",
    ),
    (
        "ixgbe",
        "reset",
        &["SECTXCTRL", "SECTXSTAT"],
        "as SECRXCTRL and SECRXSTAT; none of the sources has them",
    ),
    ("ixgbevf", "access", &["VFFRTIMER", "VFMBMEM", "VFMAILBOX", "VTEIAC"], "Barrelfish leaves them out"),
    ("ixgbevf", "mask", &["VTEIAC"], "Barrelfish leaves it out"),
    ("ixgbevf", "access", &["VFRDH"], "Barrelfish has it writable; it is the physical function's RDH"),
    (
        "igb",
        "access",
        &["SYNQF", "SAQF", "DAQF", "SPQF", "FTQF", "IMIR", "IMIREXT"],
        "none of the sources has these filters",
    ),
    ("igbvf", "access", &["RXCTL"], "QEMU's model does not have it"),
    (
        "phy",
        "access",
        &[
            "PMD_CONTROL",
            "ID_HIGH",
            "ID_LOW",
            "SPEEDS",
            "PMD_DEVICES",
            "PMD_STATUS_2",
            "PCS_STATUS",
            "AN_CONTROL",
            "AN_STATUS",
            "AN_ADVERTISE",
            "AN_PARTNER",
            "AN_10G_CONTROL",
            "AN_10G_STATUS",
            "AN_PROVISION",
            "AN_SPEED",
            "POWER",
        ],
        "Linux's headers do not say it; IEEE 802.3 does, which was not read",
    ),
];

/// Some bits of a word: the values of those that are known.
#[derive(Clone, Copy, Default)]
struct Bits {
    value: u32,
    known: u32,
}

impl Bits {
    /// Learns more bits; none may be said twice.
    fn add(&mut self, name: &str, value: u32, known: u32) {
        assert_eq!(value & !known, 0, "{name}: {value:#x} has bits outside of {known:#x}");
        assert_eq!(self.known & known, 0, "{name}: bits of {known:#x} stand twice");
        self.value |= value;
        self.known |= known;
    }

    fn differ_from(self, word: u32) -> bool {
        (word ^ self.value) & self.known != 0
    }
}

/// What a second transcription says of a register.
#[derive(Default)]
struct Facts {
    access: Option<String>,
    mask: Bits,
    reset: Bits,
}

/// Lines of a second transcription: a name, and what is said of it.
fn facts_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').unwrap())
}

/// Reads a second transcription: `NAME access=RW mask=0x3/0xf reset=0x2`, or `NAME.FIELD reset=2`.
fn second(registers: &[Register], text: &str) -> BTreeMap<String, Facts> {
    let mut all = BTreeMap::<String, Facts>::new();
    for (name, words) in facts_of(text) {
        let (register, field) = name.split_once('.').unwrap_or((name, ""));
        let facts = all.entry(register.to_owned()).or_default();
        for (kind, said) in words.split_whitespace().map(|word| word.split_once('=').unwrap()) {
            match kind {
                "access" => assert!(facts.access.replace(said.to_owned()).is_none(), "{name} stands twice"),
                "mask" => facts.mask.add(name, bits(said).0, bits(said).1),
                "reset" if field.is_empty() => facts.reset.add(name, bits(said).0, bits(said).1),
                "reset" => {
                    let entry = registers.iter().find(|entry| entry.name == register).unwrap();
                    let (_, field) = entry.fields.iter().find(|(entry, _)| *entry == field).unwrap();
                    assert_eq!(
                        field.of(field.with(number(said))),
                        number(said),
                        "{name} has not as many bits"
                    );
                    facts.reset.add(name, field.with(number(said)), field.mask);
                }
                _ => panic!("{name}: {kind}"),
            }
        }
    }
    all
}

/// A value, and the bits that it is about.
fn bits(said: &str) -> (u32, u32) {
    match said.split_once('/') {
        Some((value, known)) => (number(value), number(known)),
        None => (number(said), u32::MAX),
    }
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// The bits that a write changes, where the table gives them.
fn mask(register: &Register) -> Option<u32> {
    let not_given = match register.access {
        Access::RO | Access::RC => 0,
        Access::RW | Access::W1C | Access::WO => u32::MAX,
    };
    (register.writable != not_given).then_some(register.writable)
}

/// Compares a register. What the facts do not say comes into `alone`.
fn compare(register: &Register, facts: &Facts, alone: &mut BTreeSet<&'static str>) -> Vec<String> {
    let mut wrong = Vec::new();
    match &facts.access {
        Some(said) if said != register.access.name() => {
            wrong.push(format!("is {}, the second time {said}", register.access.name()));
        }
        Some(_) => {}
        None => _ = alone.insert("access"),
    }
    if facts.mask.differ_from(register.writable) {
        wrong
            .push(format!("mask is {:#010x}, the second time {:#010x}", register.writable, facts.mask.value));
    }
    if mask(register).is_some() && facts.mask.known != u32::MAX {
        alone.insert("mask");
    }
    match register.reset {
        Some(reset) if facts.reset.differ_from(reset) => {
            wrong.push(format!("reset is {reset:#010x}, the second time {:#010x}", facts.reset.value));
        }
        Some(reset) if reset & !facts.reset.known != 0 => _ = alone.insert("reset"),
        None if facts.reset.known != 0 => {
            wrong.push("has a reset value in the second transcription alone".into())
        }
        _ => {}
    }
    wrong
}

#[test]
fn access_masks_and_reset_values_of_two_transcriptions_agree() {
    let (mut wrong, mut alone) = (Vec::new(), BTreeSet::new());
    for (table, registers, text, count) in TABLES {
        let found: usize = facts_of(text).map(|(_, words)| words.split_whitespace().count()).sum();
        if found != count {
            wrong.push(format!("{table}: {found} facts are in the second transcription, not {count}"));
        }
        let mut facts = second(registers, text);
        for register in registers {
            let said = facts.remove(register.name).unwrap_or_default();
            let mut kinds = BTreeSet::new();
            let differences = compare(register, &said, &mut kinds);
            wrong.extend(differences.into_iter().map(|what| format!("{table}: {} {what}", register.name)));
            alone.extend(kinds.into_iter().map(|kind| (table, kind, register.name)));
        }
        wrong
            .extend(facts.keys().map(|name| format!("{table}: {name} is in the second transcription alone")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    let mut listed = BTreeSet::new();
    for (table, kind, names, why) in ALONE {
        assert!(!why.is_empty());
        for name in *names {
            assert!(listed.insert((*table, *kind, *name)), "{table}: {kind} of {name} is listed twice");
        }
    }
    let missing: Vec<_> = alone.difference(&listed).collect();
    let needless: Vec<_> = listed.difference(&alone).collect();
    assert!(missing.is_empty(), "not in the second transcription, nor listed as such: {missing:#?}");
    assert!(needless.is_empty(), "listed as missing in the second transcription, but there: {needless:#?}");
}
