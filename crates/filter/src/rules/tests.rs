//! Which rule decides of a packet: the search in its tables, beside one rule after the other.

use std::net::IpAddr;

use proptest::prelude::*;

use super::prefix::mask32;
use super::program::MOST_FOR_PLAIN;
use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn rule(name: &str, action: Action, condition: Condition) -> Rule {
    Rule { name: name.into(), condition, action, sample: None, expires: None, dry_run: false }
}

fn from(list: &[&str]) -> Condition {
    Condition { from: list.iter().map(|text| prefix(text)).collect(), ..Condition::default() }
}

/// An IPv4 or IPv6 packet with UDP ports.
fn packet(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut packet = vec![0; 12];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x08, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => panic!("two families"),
    }
    packet.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    packet.extend([0, 8, 0, 0]);
    packet
}

/// The rule that decides, by index.
fn decided(set: &RuleSet, packet: &[u8]) -> Option<usize> {
    met(set, packet).into_iter().map(|(index, _)| index).find(|index| set.rules()[*index].decides())
}

/// The rules that a whole packet meets, by index, and whether user space had been asked by then. No flow is established.
fn met(set: &RuleSet, packet: &[u8]) -> Vec<(usize, bool)> {
    let lookup = set.look_up(packet);
    let met = met_by(set, &lookup, packet);
    // Whether or not they were put down for its class.
    let joined = Lookup { found: lookup.found.not_alone(), ..lookup };
    assert_eq!(met_by(set, &joined, packet), met);
    met
}

fn met_by(set: &RuleSet, lookup: &Lookup, packet: &[u8]) -> Vec<(usize, bool)> {
    let (established, mut findings) = (Established::default(), Findings::default());
    let mut course = set.course(lookup, (packet, packet.len()), &established, &mut findings);
    std::iter::from_fn(|| {
        let index = course.next_index();
        (index < set.rules().len()).then(|| (index, course.has_asked()))
    })
    .collect()
}

#[test]
fn prefixes_are_read_or_refused_with_the_reason() {
    assert_eq!(prefix("10.0.0.0/8").to_string(), "10.0.0.0/8");
    assert_eq!(prefix("10.1.2.3").bits(), 32);
    assert_eq!(prefix("2001:db8::/32").to_string(), "2001:db8::/32");
    assert_eq!(prefix("0.0.0.0/0").bits(), 0);
    let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
    assert!(error("10.0.0.1/8").ends_with("write 10.0.0.0/8"));
    assert!(error("10.0.0.0/33").contains("no such length"));
    assert!(error("10.0.0.0/x").contains("no such length"));
    assert!(error("example.com").contains("no address"));
}

#[test]
fn the_first_rule_that_is_met_decides() {
    let ports = Condition { to_ports: vec![53..=53, 1000..=2000], ..Condition::default() };
    let both = Condition { expression: Some("udp".parse().unwrap()), ..from(&["10.9.0.0/16"]) };
    let set = RuleSet::new(vec![
        rule("keep", Action::Pass, from(&["10.1.1.1", "2001:db8:1::/48"])),
        rule("nets", Action::Drop, from(&["10.1.0.0/16", "2001:db8::/32"])),
        rule("seen", Action::Count, from(&["10.0.0.0/8"])),
        rule("both", Action::Drop, both),
        rule("ports", Action::Drop, ports),
    ])
    .unwrap();
    let of = |from: &str, port| {
        let to = if from.contains(':') { "::1" } else { "1.1.1.1" };
        decided(&set, &packet(from, to, [7, port]))
    };
    assert_eq!(of("10.1.1.1", 53), Some(0));
    assert_eq!(of("10.1.1.2", 53), Some(1));
    assert_eq!(of("2001:db8:1::5", 9), Some(0));
    assert_eq!(of("2001:db8:2::5", 9), Some(1));
    assert_eq!(of("10.9.0.1", 9), Some(3));
    assert_eq!(of("11.0.0.1", 53), Some(4));
    assert_eq!(of("11.0.0.1", 1500), Some(4));
    assert_eq!(of("11.0.0.1", 2001), None);
    assert_eq!(met(&set, &packet("10.7.0.1", "1.1.1.1", [7, 9])), [(2, false)]);
}

#[test]
fn of_rules_that_are_too_long_for_a_program_the_one_is_named_where_it_ends() {
    let long = |index: usize| {
        let expression = Some(format!("udp[10:4] = {index} or udp[14:4] = {index}").parse().unwrap());
        rule(&index.to_string(), Action::Drop, Condition { expression, ..Condition::default() })
    };
    let set = RuleSet::new((0..4000).map(long).collect()).unwrap();
    let why = RuleProgram::on_trial(&set, &[], &[]).program().unwrap_err().to_string();
    let named = why.strip_prefix("the rule '").and_then(|rest| rest.split('\'').next()?.parse().ok());
    // The jump that had to be longer leads behind the last rule.
    let distance: usize = why.split("skip ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let right = 4000 * 32767 / distance;
    assert!(named.is_some_and(|named: usize| named.abs_diff(right) < 100), "about {right}: {why}");
}

#[test]
fn rules_that_are_too_long_with_ways_for_plain_packets_do_without() {
    let long = |index: usize| {
        let expression = Some(format!("ether[100:4] = {index} or ether[104:4] = {index}").parse().unwrap());
        rule(&index.to_string(), Action::Drop, Condition { expression, ..Condition::default() })
    };
    let both = Condition { to_ports: vec![7..=7], ..from(&["10.0.0.0/8"]) };
    let set = RuleSet::new((0..270).map(long).chain([rule("both", Action::Drop, both)]).collect()).unwrap();
    let trial = RuleProgram::on_trial(&set, &[], &[]);
    let program = trial.program().unwrap();
    assert!(program.instructions().len() <= MOST_FOR_PLAIN, "{}", program.instructions().len());
    assert_eq!(trial.shorter_than(&program), Ok(None));
}

#[test]
fn what_is_too_large_is_blamed_on_the_expression_that_asks_most_and_on_no_rule_without_one() {
    let about = |text: &str| Condition { expression: Some(text.parse().unwrap()), ..Condition::default() };
    let blamed = |rules: Vec<Rule>| {
        let set = RuleSet::new(rules).unwrap();
        RuleProgram::on_trial(&set, &[], &[]).too_large().to_string()
    };
    let listed = || rule("listed", Action::Drop, from(&["10.0.0.0/8"]));
    let [little, much] = ["udp", "anyvlan and l4 udp port 9"].map(about);
    let rules = vec![listed(), rule("little", Action::Drop, little), rule("much", Action::Drop, much)];
    assert!(blamed(rules).contains("the rules, and the rule 'much' most of all; "));
    assert!(blamed(vec![listed()]).contains("the rules; "));
}

#[test]
fn sets_that_can_not_be_are_refused() {
    let twice = vec![rule("a", Action::Drop, from(&[])), rule("a", Action::Pass, from(&[]))];
    assert_eq!(RuleSet::new(twice).unwrap_err(), RuleError::Name("a".into()));
    let joined = |index: usize| {
        let expression = Some("udp".parse().unwrap());
        rule(&index.to_string(), Action::Drop, Condition { expression, ..from(&["10.0.0.0/8"]) })
    };
    let all = (0..=MOST_JOINED).map(joined).collect();
    assert_eq!(RuleSet::new(all).unwrap_err(), RuleError::Joined(MOST_JOINED + 1, MOST_JOINED.to_string()));
}

/// A DNS query over UDP for a name of one label.
fn query(port: u16, label: &[u8]) -> Vec<u8> {
    let mut packet = packet("10.0.0.1", "1.1.1.1", [7, port]);
    packet.extend([0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    packet.push(u8::try_from(label.len()).unwrap());
    packet.extend(label);
    packet.extend([0, 0, 1, 0, 1]);
    let len = packet.len();
    packet[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap().to_be_bytes());
    packet[38..40].copy_from_slice(&u16::try_from(len - 34).unwrap().to_be_bytes());
    packet
}

#[test]
fn a_query_is_told_by_its_name_and_user_space_is_asked_from_there_on() {
    let names = |list: &[&str]| Condition {
        names: list.iter().map(|text| text.parse().unwrap()).collect(),
        ..Condition::default()
    };
    let other = Condition { to_ports: vec![5300..=5300], ..names(&["*"]) };
    let set = RuleSet::new(vec![
        rule("before", Action::Count, from(&["10.0.0.0/8"])),
        rule("bad", Action::Drop, names(&["bad", "*.worse"])),
        rule("other", Action::Drop, other),
        rule("after", Action::Count, from(&["10.0.0.0/8"])),
    ])
    .unwrap();
    assert_eq!(set.rules().iter().map(Rule::asks_user_space).collect::<Vec<_>>(), [false, true, true, false]);
    let met = |packet: &[u8]| met(&set, packet);
    assert_eq!(met(&query(53, b"BAD")), [(0, false), (1, true), (3, true)]);
    assert_eq!(met(&query(53, b"worse")), [(0, false), (3, true)]);
    assert_eq!(met(&query(5300, b"bad")), [(0, false), (2, true), (3, true)]);
    assert_eq!(met(&query(54, b"bad")), [(0, false), (3, false)]);
    let mut tcp = query(53, b"bad");
    tcp[23] = 6;
    assert_eq!(met(&tcp), [(0, false), (3, true)]);
    let mut response = query(53, b"bad");
    response[44] |= 0x80;
    assert_eq!(met(&response), [(0, false), (3, true)]);
    let mut cut = query(53, b"bad");
    cut.pop();
    assert_eq!(met(&cut), [(0, false), (3, true)]);
}

#[test]
fn what_a_packet_carries_is_searched_whatever_carries_it() {
    let pattern = |text: &str, place| PayloadPattern { bytes: text.into(), place };
    let patterns = [pattern("GET /", PayloadPlace::At(0)), pattern("evil", PayloadPlace::Within(16))];
    let payload = Condition { payload: patterns.into(), ..Condition::default() };
    let both = Condition { names: vec!["*".parse().unwrap()], ..payload.clone() };
    let set =
        RuleSet::new(vec![rule("both", Action::Drop, both), rule("any", Action::Drop, payload)]).unwrap();
    assert!(set.rules().iter().all(Rule::asks_user_space));
    for (source, destination) in [("10.0.0.1", "1.1.1.1"), ("2001:db8::1", "2001:db8::2")] {
        let decided = |port: u16, text: &str| {
            let mut packet = packet(source, destination, [7, port]);
            packet.extend(text.bytes());
            let (network, header) = if source.contains(':') { (54, 40) } else { (34, 0) };
            let length = u16::try_from(packet.len() - 14 - header).unwrap().to_be_bytes();
            let at = if header == 0 { 16 } else { 18 };
            packet[at..at + 2].copy_from_slice(&length);
            let length = u16::try_from(packet.len() - network).unwrap().to_be_bytes();
            packet[network + 4..network + 6].copy_from_slice(&length);
            decided(&set, &packet)
        };
        assert_eq!(decided(80, "GET /index.html"), Some(1));
        assert_eq!(decided(80, " GET /index.html"), None);
        assert_eq!(decided(80, "it is really evil"), None);
        assert_eq!(decided(80, "it is quite evil"), Some(1));
        assert_eq!(decided(53, "it is quite evil"), Some(1), "no query");
    }
    assert_eq!(
        decided(&set, &query(53, b"evil")),
        None,
        "it begins at the 14th byte, so one is beyond the 16th"
    );
    let named = RuleSet::new(vec![rule(
        "both",
        Action::Drop,
        Condition {
            names: vec!["*".parse().unwrap()],
            payload: vec![pattern("evil", PayloadPlace::Within(17))],
            ..Condition::default()
        },
    )]);
    let named = named.unwrap();
    assert_eq!(decided(&named, &query(53, b"evil")), Some(0));
    assert_eq!(decided(&named, &query(53, b"good")), None);
    assert_eq!(decided(&set, &packet("10.0.0.1", "1.1.1.1", [7, 53])), None);
}

/// Whether an address is in a prefix, by the definition.
fn is_in(address: u32, prefix: (u32, u8)) -> bool {
    prefix.1 == 0 || (address ^ prefix.0) >> (32 - prefix.1) == 0
}

proptest! {
    #[test]
    fn a_list_of_prefixes_means_what_its_prefixes_mean(
        lists in prop::collection::vec(prop::collection::vec((0_u32..1 << 12, 0_u8..=32), 1..6), 1..6),
        addresses in prop::collection::vec(0_u32..1 << 12, 1..40),
    ) {
        // Few addresses spread over all bytes, so that prefixes meet.
        let spread = |n: u32| (n & 7) << 29 | (n >> 3 & 7) << 14 | (n >> 6 & 7) << 6 | n >> 9 & 7;
        let lists: Vec<Vec<(u32, u8)>> = lists.into_iter().map(|list| {
            list.into_iter().map(|(address, bits)| (spread(address) & mask32(bits), bits)).collect()
        }).collect();
        let rules = lists.iter().enumerate().map(|(index, list)| {
            let from = list.iter().map(|(a, bits)| Prefix::new(IpAddr::V4((*a).into()), *bits).unwrap()).collect();
            // Every other one stands beside an expression that holds always.
            let expression = (index % 2 == 1).then(|| "ip".parse().unwrap());
            rule(&index.to_string(), Action::Drop, Condition { expression, from, ..Condition::default() })
        });
        let set = RuleSet::new(rules.collect()).unwrap();
        for address in addresses.into_iter().map(spread) {
            let right = lists.iter().position(|list| list.iter().any(|prefix| is_in(address, *prefix)));
            let text = std::net::Ipv4Addr::from(address).to_string();
            prop_assert_eq!(decided(&set, &packet(&text, "9.9.9.9", [1, 2])), right);
        }
    }
}

/// A condition of some parts, by the bits of a number.
fn some(parts: u32) -> Condition {
    let pick = |bits: u32| parts >> bits & 3;
    let names = [&[][..], &["bad"], &["*"], &["worse"]][pick(0) as usize];
    let payload = [None, Some("bad"), Some("evil"), None][pick(2) as usize];
    let place = if pick(4) == 0 { PayloadPlace::At(13) } else { PayloadPlace::Within(20) };
    Condition {
        expression: [None, Some("udp"), Some("tcp"), None][pick(6) as usize]
            .map(|text| text.parse().unwrap()),
        from: [&[][..], &["10.0.0.0/16"], &["11.0.0.0/8"], &[]][pick(8) as usize]
            .iter()
            .map(|text| prefix(text))
            .collect(),
        to_ports: [vec![], vec![53..=54], vec![80..=80], vec![]][pick(10) as usize].clone(),
        names: names.iter().map(|text| text.parse().unwrap()).collect(),
        payload: payload.map(|text| PayloadPattern { bytes: text.into(), place }).into_iter().collect(),
        ..Condition::default()
    }
}

proptest! {
    /// With more lists than a word has bits, and with so many that those of lists alone are crossed.
    #[test]
    fn rules_among_many_are_met_as_each_alone(
        parts in prop::collection::vec(0_u32..1 << 12, 1..240),
        ports in prop::collection::vec(prop::sample::select(vec![53_u16, 80, 9]), 1..4),
        label in prop::sample::select(vec!["bad", "good", "evil", "worse"]),
    ) {
        let rules: Vec<Rule> = parts.iter().enumerate().map(|(index, parts)| {
            rule(&index.to_string(), Action::Count, some(*parts))
        }).collect();
        let set = RuleSet::new(rules.clone()).unwrap();
        for port in ports {
            let packet = query(port, label.as_bytes());
            let is_met = |condition: Condition| {
                let alone = RuleSet::new(vec![rule("alone", Action::Count, condition)]).unwrap();
                !met(&alone, &packet).is_empty()
            };
            let (mut right, mut asked) = (Vec::new(), false);
            for (index, Rule { condition, .. }) in rules.iter().enumerate() {
                // What names mean without a name: to the port of DNS.
                let to_ports = condition.wanted_ports().to_vec();
                let before = Condition { names: vec![], payload: vec![], to_ports, ..condition.clone() };
                asked |= condition.needs_look() && is_met(before);
                if is_met(condition.clone()) {
                    right.push((index, asked));
                }
            }
            prop_assert_eq!(met(&set, &packet), right);
        }
    }
}

#[test]
fn headers_are_read_where_a_list_or_a_limit_asks_for_them() {
    let packet = packet("10.0.0.1", "1.1.1.1", [7, 53]);
    let limit = Action::Limit(Limit { rate: 1, burst: 1, per: Per::Rule, block: None });
    let all = |text: &str| Condition { expression: Some(text.parse().unwrap()), ..Condition::default() };
    let read = |action, condition| {
        let set = RuleSet::new(vec![rule("one", action, condition)]).unwrap();
        let (lookup, mut lookups) = (set.look_up(&packet), vec![Lookup::default(); 3]);
        set.look_up_all([&packet[..]; 2].into_iter(), &mut lookups);
        assert!(lookups.len() == 2 && lookups.iter().all(|each| each.headers == lookup.headers));
        let mut limits = Vec::new();
        set.each_limit(&lookup, |index| limits.push(index));
        assert!(decided(&set, &packet).is_some() && set.knows_limits() != limits.is_empty());
        (lookup.headers == Headers::of(&packet), set.knows_limits())
    };
    assert_eq!(read(Action::Queue, all("")), (false, false));
    assert_eq!(read(Action::Drop, all("udp")), (false, false));
    assert_eq!(read(Action::Drop, from(&["10.0.0.0/8"])), (true, false));
    assert_eq!(read(limit, all("udp")), (true, false));
    assert_eq!(read(limit, all("")), (true, true));
    assert_eq!(read(limit, from(&["10.0.0.0/8"])), (true, true));
}
