//! What rule files say, and where what is wrong with one is shown.

use bywash_port::SteerRule;
use bywash_port::filter::rules::{MOST_RULES, PayloadPattern, PayloadPlace};

use super::*;

fn parse(text: &str) -> Result<RuleFile, RuleFileError> {
    RuleFile::parse(text, Path::new("rules.toml"))
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_file_is_read_as_it_is_meant() {
    let file = parse(
        r#"
never_drop = ["192.0.2.0/24", "tcp port 179"]

[[rule]]
name = "amplification"
match = "udp and len > 400"
from_ports = [53, 123, "1900-1902"]
action = "drop"
sample = 1000
expires = 2026-12-01T00:00:00Z

[[rule]]
name = "dns"
to_ports = [53]
action = "limit"
rate = 100
per = "source/24/48"
block_seconds = 10
dry_run = true
"#,
    )
    .unwrap();
    let [first, second] = &file.rules[..] else { panic!("{file:?}") };
    assert_eq!(first.condition.from_ports, [53..=53, 123..=123, 1900..=1902]);
    assert_eq!((first.action, first.sample), (Action::Drop, NonZeroU32::new(1000)));
    let unix = first.expires.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(unix.as_secs(), 1_796_083_200);
    let per = Per::Source { v4: 24, v6: 48 };
    let limit = Limit { rate: 100, burst: 100, per, block: Some(Duration::from_secs(10)) };
    assert_eq!((second.action, second.dry_run), (Action::Limit(limit), true));
    assert_eq!(file.never.len(), 2);
    let live = |seconds| file.live(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    assert_eq!(live(1_796_083_199).set.rules().len(), 2);
    assert_eq!(live(1_796_083_200).set.rules().len(), 1);
}

#[test]
fn patterns_are_texts_or_bytes_at_an_offset_or_within_the_first_bytes() {
    let file = parse(
        r#"
[[rule]]
name = "a"
action = "drop"
payload = [{ text = "GET /", at = 0 }, { bytes = "deAD be ef", within = 64 }]
"#,
    )
    .unwrap();
    let right = [
        PayloadPattern { bytes: b"GET /".into(), place: PayloadPlace::At(0) },
        PayloadPattern { bytes: vec![0xde, 0xad, 0xbe, 0xef], place: PayloadPlace::Within(64) },
    ];
    assert_eq!(file.rules[0].condition.payload, right);
}

#[test]
fn established_flows_are_asked_for_by_rules_and_kept_as_the_file_says() {
    let rule = "[[rule]]\nname = \"a\"\nestablished = true\naction = \"pass\"\n";
    let usual = parse(rule).unwrap();
    assert_eq!(usual.rules[0].condition.established, Some(Duration::from_secs(300)));
    assert_eq!(usual.flows, FlowOptions::default());
    let text =
        format!("[established]\nflows = 1000\nexcept = [\"udp src port 53\"]\n{rule}idle_seconds = 7200\n");
    let file = parse(&text).unwrap();
    assert_eq!(file.rules[0].condition.established, Some(Duration::from_secs(7200)));
    let except = vec!["udp src port 53".parse().unwrap()];
    assert_eq!(file.live(SystemTime::UNIX_EPOCH).unwrap().flows, FlowOptions { most: 1000, except });
}

#[test]
fn a_list_with_nothing_in_it_is_a_mistake_as_an_empty_file_is() {
    for list in ["from", "to", "from_ports", "to_ports", "names", "payload"] {
        let found =
            error(&format!("[[rule]]\nname = \"a\"\naction = \"drop\"\nmatch = \"udp\"\n{list} = []"));
        let place = format!("rules.toml:5:{}: there is nothing in this list", list.len() + 4);
        assert!(found.starts_with(&place), "{found}");
    }
    let beside = "[[rule]]\nname = \"a\"\naction = \"drop\"\nfrom = []\nfrom_file = \"nets.txt\"";
    assert_eq!(error(beside), "rules.toml:4:8: there is nothing in this list: leave it out");
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let rule = |more: &str| error(&format!("[[rule]]\nname = \"a\"\n{more}"));
    let with = |more: &str| rule(&format!("action = \"drop\"\n{more}"));
    let joined: String = (0..1100)
        .map(|number| {
            format!(
                "{}[[rule]]\nname = \"{number}\"\nmatch = \"udp\"\naction = \"count\"\nfrom = [\"10.0.0.0/8\"]\n",
                "\n".repeat(5)
            )
        })
        .collect();
    for (found, place, what) in [
        (with("match = \"udp prot 53\""), "4:14", "prot"),
        (with("match = 'udp prot 53'"), "4:14", "prot"),
        (with("match = \"\"\"udp prot 53\"\"\""), "4:16", "prot"),
        (with("match = '''\nudp\n  prot 53'''"), "6:3", "prot"),
        (with("match = \"\"\"\r\nudp or\nudp prot 53\"\"\""), "6:5", "prot"),
        (with("names = ['''\nwww.*.org''']"), "5:5", "a * stands alone"),
        (with("payload = [{ bytes = \"\"\"\nde ad b\"\"\", at = 0 }]"), "5:7", "hexadecimal digits"),
        (with("match = \"\"\nfrom = [\"10.0.0.1/8\"]"), "5:9", "write 10.0.0.0/8"),
        (with("from = [\n  \"10.0.0.0/8\",\n  \"10.0.0.0/40\",\n]"), "6:3", "no such length"),
        (with("to_ports = [\"9-3\"]"), "4:13", "no range of ports"),
        (with("to_ports = [70000]"), "4:13", "no port"),
        (with("match = \"\"\nrate = 5"), "5:8", "for action = \"limit\""),
        (with("match = \"\"\nsample = 0"), "5:10", "write 1 for all"),
        (with("match = \"\"\nsample = 1000000001"), "5:10", "at most 1000000000"),
        (with("match = \"\"\nexpires = 2026-12-01"), "5:11", "date, time and offset"),
        (with("mach = \"udp\""), "4:1", "unknown field `mach`"),
        (with("names = [\"a.org\", \"www.*.org\"]"), "4:24", "a * stands alone"),
        (with("names = [\"\"]"), "4:11", "an empty label"),
        (with("payload = [{ text = \"a\" }]"), "4:12", "say where"),
        (with("payload = [{ text = \"a\", at = 1, within = 2 }]"), "4:12", "say where"),
        (with("payload = [{ at = 1 }]"), "4:12", "say what to look for"),
        (with("payload = [{ text = \"\", at = 1 }]"), "4:12", "nothing to look for"),
        (with("payload = [{ text = \"a\", at = -1 }]"), "4:31", "-1 is no offset"),
        (with("payload = [{ text = \"abc\", within = 2 }]"), "4:37", "write at least 3"),
        (with("payload = [{ bytes = \"de ad b\", at = 0 }]"), "4:29", "hexadecimal digits"),
        (with("payload = [{ txt = \"a\", at = 0 }]"), "4:14", "unknown field `txt`"),
        (with("established = false"), "4:15", "leave it out"),
        (with("match = \"\"\nidle_seconds = 5"), "5:16", "for established = true"),
        (with("established = true\nidle_seconds = 0"), "5:16", "write 1 to"),
        (error("[established]\nflows = 0"), "2:9", "write 1 to"),
        (error("[established]\nexcept = [\"udp prot 53\"]"), "2:16", "prot"),
        (error("[established]\nflow = 5"), "2:1", "unknown field `flow`"),
        (with(""), "2:8", "says not which packets"),
        (rule("match = \"\"\naction = \"dorp\""), "4:10", "'dorp' is no action"),
        (rule("match = \"\"\naction = \"limit\""), "4:10", "needs a rate"),
        (rule("match = \"\"\naction = \"limit\"\nrate = 0"), "5:8", "0 lets nothing through"),
        (rule("match = \"\"\naction = \"limit\"\nrate = 1000000001"), "5:8", "at most 1000000000"),
        (rule("match = \"\"\naction = \"limit\"\nrate = 1\nper = \"src\""), "6:7", "source/24"),
        (
            rule("match = \"\"\naction = \"limit\"\nrate = 1\nper = \"flow\"\nblock_seconds = 1"),
            "7:17",
            "only sources",
        ),
        (
            rule("match = \"\"\naction = \"limit\"\nrate = 1\nblock_seconds = 0"),
            "6:17",
            "0 s block nobody: leave it out",
        ),
        (rule("match = \"\"\naction = \"sample\""), "4:10", "say how many"),
        (rule("match = \"\"\naction = \"queue\""), "4:10", "say which"),
        (rule("match = \"\"\naction = \"drop\"\nqueue = 1"), "5:9", "for action = \"queue\""),
        (rule("match = \"\"\naction = \"syncookie\"\ndry_run = true"), "4:10", "answered in XDP"),
        (rule("match = \"\"\naction = \"synproxy\"\nwscale = 7"), "4:10", "mss = 1460"),
        (rule("match = \"\"\naction = \"synproxy\"\nmss = 1460"), "4:10", "wscale = 7"),
        (rule("match = \"\"\naction = \"synproxy\"\nmss = 0\nwscale = 7"), "5:7", "carry nothing"),
        (rule("match = \"\"\naction = \"synproxy\"\nmss = 1460\nwscale = 15"), "6:10", "14 at most"),
        (rule("match = \"\"\naction = \"syncookie\"\nmss = 1460"), "5:7", "for action = \"synproxy\""),
        (rule("match = \"\"\naction = \"limit\"\nrate = 1\nqueue = 1"), "6:9", "for action = \"queue\""),
        (rule("match = \"\""), "1:1", "missing field `action`"),
        (error("[[rule]\nname = 1"), "1:8", ""),
        (error("[rule]\nname = \"a\""), "1:1", "write [[rule]]"),
        (
            error("[[rule]]\nname = \"a\\u001b[2J\"\nmatch = \"\"\naction = \"drop\""),
            "2:8",
            "a control character",
        ),
        (error("never_drop = [\"nonsense\"]"), "1:16", "expression"),
        (error("never_drop = [\"10.0.0.0/99\"]"), "1:15", "no such length"),
        (error("never_drop = [\"10.0.0.1/8\"]"), "1:15", "write 10.0.0.0/8"),
        (error("never_drop = [\"fd00::/129\"]"), "1:15", "no such length"),
        (error("never_drop = [\"udp\", \"\"]"), "1:22", "no rule would drop anything"),
        (error("[established]\nexcept = [\" \"]"), "2:11", "no flow would be established"),
        (with("names = [\"\"]"), "4:11", "an empty label"),
        (with("from_file = \"/\""), "4:13", "/: it can't be read: it is a directory: name a file"),
        (with("from_file = \"/dev/zero\""), "4:13", "it is a device: name a file"),
        (with("from_file = \"absent.txt\""), "4:13", "absent.txt: it can't be read"),
        (error(&joined), "10249:10", "the rule '1024' "),
    ] {
        assert!(found.starts_with(&format!("rules.toml:{place}: ")), "{found} not at {place}");
        assert!(found.contains(what) && !found.contains('\n'), "{found} without {what}");
    }
    let twice = "[[rule]]\nname = \"a\"\nmatch = \"\"\naction = \"drop\"\n";
    assert!(error(&format!("{twice}{twice}")).starts_with("rules.toml:6:8: the name 'a'"));
}

/// Each name is as long as can be told apart only at its end, and each line far from the first: who looks through all names or
/// all lines for each rule reads 2^40 bytes.
#[test]
fn as_many_rules_as_there_may_be_are_read_in_one_pass() {
    const LIMIT: Duration = Duration::from_secs(60);
    let long = "x".repeat(8192);
    let rule =
        |number| format!("[[rule]]\nname = \"{long}{number:05}\"\nto_ports = [9]\naction = \"drop\"\n");
    let text: String = (0..MOST_RULES).map(rule).collect();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(parse(&text).map(|file| file.rules.len())));
    assert_eq!(told.recv_timeout(LIMIT), Ok(Ok(MOST_RULES)));
}

#[test]
fn lists_in_files_are_read_and_their_mistakes_named_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let list = folder.path().join("nets.txt");
    let text = "[[rule]]\nname = \"a\"\nfrom_file = \"nets.txt\"\naction = \"drop\"\n";
    std::fs::write(&list, "\u{feff}# bad ones\n10.0.0.0/8\n  2001:db8::/32 # here\n\n").unwrap();
    let file = RuleFile::parse(text, &path).unwrap();
    assert_eq!(file.rules[0].condition.from.len(), 2);
    assert_eq!(file.files, [Watched::now(&path), Watched::now(&list)]);
    std::fs::write(&list, "10.0.0.0/8\n  10.0.0.300\n").unwrap();
    let error = RuleFile::parse(text, &path).unwrap_err();
    assert_eq!((error.line, error.column), (2, 3));
    assert!(error.file.ends_with("nets.txt"));
    std::fs::write(&path, text).unwrap();
    let refused = RuleFile::read_or_refuse(&path).unwrap_err();
    assert_eq!((&refused.error, &refused.files[1..]), (&error, &[Watched::now(&list)][..]));
    std::fs::write(&list, "").unwrap();
    assert!(RuleFile::parse(text, &path).unwrap_err().what.contains("no prefix"));
    let beside = text.replace("from_file", "from = [\"10.0.0.0/8\"]\nfrom_file");
    assert_eq!(RuleFile::parse(&beside, &path).unwrap_err().what, "this file has no prefix: leave it out");
    let text = text.replace("from_file", "names_file");
    assert!(RuleFile::parse(&text, &path).unwrap_err().what.contains("no name"));
    std::fs::write(&list, "# bad ones\nExample.org\n*.example.org # all below\n").unwrap();
    let names = RuleFile::parse(&text, &path).unwrap().rules[0].condition.names.clone();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["example.org.", "*.example.org."]);
    std::fs::write(&list, "example.org\n  exa*mple.org\n").unwrap();
    let error = RuleFile::parse(&text, &path).unwrap_err();
    assert_eq!((error.line, error.column), (2, 3));
}

/// As a shell's `<(...)`; it is not waited for without end.
#[test]
fn a_list_may_come_by_a_pipe_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (path, pipe) = (folder.path().join("rules.toml"), folder.path().join("pipe"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let text = "[[rule]]\nname = \"a\"\nfrom_file = \"pipe\"\naction = \"drop\"\n";
    let error = RuleFile::parse(text, &path).unwrap_err();
    assert_eq!((error.line, error.column), (3, 13));
    assert!(error.what.ends_with("it is a pipe, and not all of it has come within 5 s"), "{error}");
    let before = Watched::now(&pipe);
    let file = std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&pipe, "10.0.0.0/8\n".repeat(10_000)));
        RuleFile::parse(text, &path).unwrap()
    });
    assert_eq!(file.rules[0].condition.from.len(), 10_000);
    assert_eq!(before.again(), before, "that it was written and read is no reason to read it anew");
}

#[test]
fn rules_whose_match_leaves_nothing_of_what_they_are_about_are_told_of() {
    let rule = |name: &str, more: &str| format!("[[rule]]\nname = \"{name}\"\n{more}\n");
    let text = [
        rule("a", "names = [\"*\"]\nmatch = \"tcp\"\naction = \"drop\""),
        rule("b", "match = \"udp dst port 80\"\naction = \"syncookie\""),
        rule("c", "names = [\"*\"]\nmatch = \"ip\"\naction = \"drop\""),
    ]
    .concat();
    let told = parse(&text).unwrap().idle_rules(SystemTime::UNIX_EPOCH);
    let right = [
        "rules.toml:4:9: the rule 'a' is about names, which are asked for over UDP, and its match excludes UDP: it does nothing",
        "rules.toml:8:9: the rule 'b' is about SYNs, and its match excludes TCP: it does nothing",
    ];
    assert_eq!(told, right);
}

/// What comes to user space does not come back to where SYNs are answered.
#[test]
fn rules_that_answer_syns_behind_those_that_give_them_to_user_space_are_told_of() {
    let rule = |name: &str, more: &str| format!("[[rule]]\nname = \"{name}\"\n{more}\n");
    let told = |before: &str, web: &str| {
        let text = rule("before", before) + &rule("web", &format!("{web}\naction = \"syncookie\""));
        parse(&text).unwrap().idle_rules(SystemTime::UNIX_EPOCH)
    };
    let limit = "action = \"limit\"\nrate = 9";
    let (all, some) =
        ("gives user space all TCP that it is about: it does nothing", "gives user space all TCP to port");
    for (before, web, what) in [
        (format!("match = \"\"\n{limit}"), "to_ports = [80]", all),
        (format!("match = \"tcp\"\n{limit}"), "match = \"ip\"", all),
        (format!("match = \"tcp dst port 80\"\n{limit}"), "to_ports = [80]", all),
        (format!("to_ports = [443, \"1-99\"]\n{limit}\ndry_run = true"), "to_ports = [80, \"90-99\"]", all),
        (format!("to_ports = [80]\n{limit}"), "to_ports = [80, 443]", some),
        (format!("from = [\"10.0.0.0/8\"]\n{limit}"), "from = [\"10.1.0.0/16\", \"10.2.0.1\"]", all),
        ("names = [\"*\"]\naction = \"drop\"".into(), "to_ports = [53]", all),
        ("names = [\"*\"]\naction = \"drop\"".into(), "to_ports = [53, 80]", some),
        (
            "payload = [{ text = \"x\", at = 0 }]\naction = \"drop\"".into(),
            "match = \"tcp dst port 80\"",
            all,
        ),
    ] {
        let told = told(&before, web);
        let [told] = &told[..] else { panic!("{before} {web}: {told:?}") };
        let line = 1 + 2 + before.lines().count() + 1;
        assert!(
            told.starts_with(&format!("rules.toml:{line}:8: the rule 'web' stands behind 'before', which ")),
            "{told}"
        );
        assert!(told.contains(what), "{told}");
    }
    let told_of_one = told(&format!("to_ports = [80]\n{limit}"), "to_ports = [443, 80, \"79-80\"]");
    assert!(told_of_one[0].ends_with("all TCP to port 80: it does nothing there"), "{told_of_one:?}");
    for (before, web) in [
        (format!("match = \"udp\"\n{limit}"), "to_ports = [80]"),
        (format!("match = \"ip\"\n{limit}"), "to_ports = [80]"),
        (format!("to_ports = [80]\n{limit}"), "match = \"tcp\""),
        (format!("to_ports = [80]\n{limit}"), "to_ports = [\"79-81\"]"),
        (format!("from = [\"10.0.0.0/8\"]\n{limit}"), "to_ports = [80]"),
        (format!("from = [\"10.0.0.0/8\"]\n{limit}"), "from = [\"10.0.0.0/7\"]"),
        (format!("established = true\n{limit}"), "to_ports = [80]"),
        (format!("match = \"tcp\"\n{limit}\nexpires = 2099-01-01T00:00:00Z"), "to_ports = [80]"),
        ("to_ports = [80]\naction = \"drop\"\ndry_run = true".into(), "to_ports = [80]"),
        ("names = [\"*\"]\naction = \"drop\"".into(), "to_ports = [80]"),
        ("names = [\"*\"]\nto_ports = [54]\naction = \"drop\"".into(), "to_ports = [53]"),
    ] {
        assert_eq!(told(&before, web), Vec::<String>::new(), "{before} {web}");
    }
}

#[test]
fn what_is_no_utf_8_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let [path, list] = ["rules.toml", "nets.txt"].map(|name| folder.path().join(name));
    let told = || RuleFile::read(&path).unwrap_err().to_string();
    // As ISO 8859-1 has it; columns are characters.
    std::fs::write(&path, b"[[rule]]\nname = \"\xc3\xa4 \xe4\"\n").unwrap();
    let what = "the byte 0xe4 is not UTF-8: save the file as UTF-8";
    assert_eq!(told(), format!("{}:2:11: {what}", path.display()));
    std::fs::write(&path, "[[rule]]\nname = \"a\"\nfrom_file = \"nets.txt\"\naction = \"drop\"\n").unwrap();
    std::fs::write(&list, b"10.0.0.0/8\n10.1.0.0/16 # f\xe4r\n").unwrap();
    assert_eq!(told(), format!("{}:2:16: {what}", list.display()));
}

#[test]
fn what_a_nic_can_obey_alone_is_told_from_what_it_cant() {
    let two = |second: &str| {
        let text = format!(
            "[[rule]]\nname = \"dns\"\nmatch = \"ip and udp dst port 53\"\naction = \"queue\"\nqueue = 3\n{second}"
        );
        parse(&text).unwrap()
    };
    let for_nic = |file: RuleFile| file.for_steer(|rule| SteerRule::of(rule).map(drop));
    let rules = for_nic(two("")).unwrap();
    assert_eq!((rules.len(), rules[0].action), (1, Action::Steer(3)));
    let drop = "[[rule]]\nname = \"r\"\nto_ports = [53]\naction = \"drop\"\n";
    let error = for_nic(two(drop)).unwrap_err();
    assert_eq!((error.line, error.column), (9, 10));
    assert!(error.what.starts_with("'r' is no rule for --steer: IPv6 is a part of it"), "{error}");
    let why = "the rule 'r' can't";
    assert!(two(drop).located(why).ends_with(":9:10: the rule 'r' can't"), "{}", two(drop).located(why));
    assert_eq!(two("").located(why), why, "there is no such rule");
    for (stray, place) in [("never_drop = ['10.0.0.1']", "1:15"), ("[established]\nflows = 1000", "1:1")] {
        let error = for_nic(parse(&format!("{stray}\n{drop}")).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("rules.toml:{place}: --steer ")), "{error}");
    }
}

#[test]
fn of_several_rules_in_a_reason_the_first_one_is_shown() {
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nmatch = \"udp\"\naction = \"drop\"\n");
    let file = parse(&["seen", "flood", "flood' or so"].map(rule).concat()).unwrap();
    for (why, line) in [
        ("the rule 'flood' is not in the NIC: the rule 'seen' before it may be about some of them", 8),
        ("the rule 'flood': can't read the kernel setting net.ipv4.tcp_syncookies", 8),
        ("the rule 'flood' or so' has no room", 12),
    ] {
        assert_eq!(file.located(why), format!("rules.toml:{line}:10: {why}"));
    }
}

#[test]
fn what_comes_from_a_prefix_is_never_dropped_and_what_goes_to_it_is() {
    let never = |text: &str| {
        let file = parse(&format!("never_drop = ['{text}']\n")).unwrap();
        file.never.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(never("10.77.0.0/24"), ["anyvlan and (src net 10.77.0.0/24)"]);
    assert_eq!(never("2001:db8::7"), ["anyvlan and (src net 2001:db8::7/128)"]);
    assert_eq!(never("net 10.77.0.0/24"), ["net 10.77.0.0/24"], "who writes both means both");
}

#[test]
fn prefixes_that_are_never_dropped_are_joined_as_far_as_that_goes() {
    let never = |prefixes: &[String]| {
        let list: Vec<_> = prefixes.iter().map(|prefix| format!("'{prefix}'")).collect();
        parse(&format!("never_drop = ['udp', {}]\n", list.join(", "))).unwrap().never.len()
    };
    let six = |n: usize| format!("2001:{:x}:1234:5678:9abc:def0:1234:{n:x}", 0xd000 + n);
    let four = |n: usize| format!("203.0.{}.{}", n / 256, n % 256);
    let all: Vec<_> = (0..1000).map(four).chain((0..1000).map(six)).collect();
    assert_eq!((never(&all[..1]), never(&all)), (2, 3));
    assert_eq!(never(&(0..1001).map(four).collect::<Vec<_>>()), 3);
}
