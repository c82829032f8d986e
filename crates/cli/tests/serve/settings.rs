//! What an instance is told by flags and files: settings of TCP, VLANs, and that routers say the rest.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywash_lab::lock;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with, sockopt};
use serde_json::{Value, json};

use crate::instance::{Instance, client, pair};

/// Patience with a busy machine.
const MINUTE: Duration = Duration::from_secs(60);

fn rows(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn says_and_hears(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(MINUTE)).unwrap();
    stream.write_all(&[7; 5000]).unwrap();
    let mut back = [0; 5000];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, [7; 5000]);
}

#[test]
fn tcp_is_as_a_file_and_flags_say_and_its_connections_show_it() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[[port]]\nport = 'xdp:{}'\naddresses = ['10.9.0.2/24']\n[[route]]\nprefix = 'default'\nvia = '10.9.0.1'\n\
         [tcp]\ncongestion_control = 'newreno'\nmaxseg = 500\n",
        pair.far.name
    );
    std::fs::write(config.path(), text).unwrap();
    let echo =
        Instance::start(&far, &format!("tcp|echo|--timestamps|off|--config|{}", config.path().display()));
    near.enter(|| {
        let mut stream = TcpStream::connect(("10.9.0.2", 7)).unwrap();
        says_and_hears(&mut stream);
        let port = stream.local_addr().unwrap().port();
        let shown = echo.told(&format!("sockets -t -i --json state established dport = :{port}"));
        let [row] = &rows(&shown)[..] else { panic!("{shown}") };
        let info = &row["info"];
        assert_eq!((&info["congestion"], &info["snd_mss"]), (&"newreno".into(), &500.into()), "{row}");
        assert_eq!((&info["timestamps"], &info["sack"]), (&false.into(), &true.into()), "{row}");
        assert_eq!((&info["bytes_received"], &info["bytes_acked"]), (&5000.into(), &5000.into()), "{row}");
        let text = String::from_utf8(echo.ask("sockets -i state established").stdout).unwrap();
        assert!(text.contains("\n      sack newreno ") && text.contains(" mss:500 "), "{text}");
        let listening = echo.told("sockets -l -t -n --json");
        assert!(!rows(&listening).is_empty() && rows(&listening).iter().all(|row| row["state"] == "LISTEN"));
        // `show` may be there, and cut short as with addresses; none of a filter's own words is taken for it.
        let filters = [
            "state established",
            "src 10.9.0.2 dport gt 7",
            "sport = :7 exclude listening",
            "exclude listening",
        ];
        for filter in filters {
            for show in ["", "show ", "s ", "sh ", "list ", "l ", "ls ", "lst "] {
                let shown = echo.told(&format!("sockets --json {show}{filter}"));
                assert_eq!(rows(&shown).len(), 1, "{show}{filter}: {shown}");
                assert_eq!(shown[0]["state"], "ESTAB", "{show}{filter}");
            }
        }
        for show in ["show", "list", "l"] {
            assert_eq!(rows(&echo.told(&format!("sockets {show} --json"))).len(), 2, "{show}");
            assert_eq!(echo.told(&format!("sockets -s {show} --json"))["established"], 1, "{show}");
            assert!(echo.told(&format!("stats {show} --json"))["engines"].is_array(), "{show}");
        }
        for none in ["sockets -u --json", "sockets --json sport = :8", "sockets --json show sport = :8"] {
            assert!(rows(&echo.told(none)).is_empty(), "{none}");
        }
    })
    .unwrap();
    let name = &pair.far.name;
    let default = echo.told("route show default --json");
    assert_eq!((rows(&default).len(), &default[0]["protocol"]), (1, &"static".into()), "{default}");
    let link = echo.told(&format!("route show 10.9.0.0/24 dev {name} --json"));
    assert_eq!((rows(&link).len(), &link[0]["protocol"]), (1, &"kernel".into()), "{link}");
    let way = String::from_utf8(echo.ask("route get 192.0.2.7").stdout).unwrap();
    assert_eq!(way, format!("192.0.2.7 via 10.9.0.1 dev {name} src 10.9.0.2\n"));
    let way = String::from_utf8(echo.ask("route get 10.9.0.1").stdout).unwrap();
    assert_eq!(way, format!("10.9.0.1 dev {name} src 10.9.0.2\n"));
    assert_eq!(rows(&echo.told(&format!("addr show dev {name} --json"))).len(), 1);
    assert_eq!(rows(&echo.told("neigh show 10.9.0.1 --json")).len(), 1);
    assert!(rows(&echo.told("neigh show 10.9.0.77 --json")).is_empty());
    for (words, says) in [
        ("stats get", "'get' is not known: write show"),
        ("stats shown", "'shown' is not known: write show"),
        ("stats show engines", "'engines' is not known: write nothing behind 'show'"),
        ("sockets add", "'add' is not known: write state, exclude,"),
        ("sockets listening", "'listening' is not known: write state, exclude,"),
        ("sockets show list", "'list' is not known: write state, exclude,"),
        ("sockets -s show state established", "--summary counts all: leave 'state' out"),
        ("sockets -s state established", "--summary counts all: leave 'state' out"),
    ] {
        echo.refuses(words, says);
    }
    for wrong in ["addr show dev absent", "route get 2001:db8::1", "addr get 10.9.0.1", "sockets state open"]
    {
        assert_eq!(echo.ask(wrong).status.code(), Some(2), "{wrong}");
    }
    echo.end();
}

/// What sends a router's advertisements on a link: of 2001:db8:7::/64, valid for an hour and preferred for half of it.
fn router(index: u32) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6)).unwrap();
    // RFC 4861, 6.1.2: else it has come from afar.
    sockopt::set_ipv6_multicast_hops(&fd, 255).unwrap();
    sockopt::set_ipv6_multicast_if(&fd, index).unwrap();
    fd
}

fn advertise(fd: &OwnedFd, index: u32) {
    let mut message = vec![134, 0, 0, 0, 64, 0];
    message.extend(1800u16.to_be_bytes());
    message.extend([0; 8]);
    // The prefix option: on the link, and to make addresses of.
    message.extend([3, 4, 64, 0xc0]);
    message.extend([3600u32.to_be_bytes(), 1800u32.to_be_bytes(), [0; 4]].concat());
    message.extend(Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 0).octets());
    let all_nodes = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, index);
    // Before the link has an address of its own it can't be sent; it is sent again.
    let _ = sendto(fd, &message, SendFlags::empty(), &all_nodes);
}

#[test]
fn routers_say_what_addresses_and_routes_there_are() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&[]);
    let index = pair.near.index;
    let router = near.enter(|| router(index)).unwrap();
    near.add_address(index, "2001:db8:7::1/64".parse().unwrap()).unwrap();
    let over = AtomicBool::new(false);
    let echo = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                advertise(&router, index);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let echo = Instance::start(&far, &format!("tcp|echo|--port|xdp:{}|--addr|auto6", pair.far.name));
        over.store(true, Ordering::Relaxed);
        echo
    });
    // It has begun only now that it has an address.
    let addresses = echo.told("addr --json");
    let ours = rows(&addresses).iter().find(|row| row["dynamic"] == true).unwrap();
    let address = ours["address"].as_str().unwrap().strip_suffix("/64").unwrap();
    assert!(address.starts_with("2001:db8:7:") && ours["state"] == "preferred", "{addresses}");
    let lasts = |field: &str| ours[field].as_u64().unwrap();
    let (valid, preferred) = (lasts("valid_life_time"), lasts("preferred_life_time"));
    assert!((3000..=3600).contains(&valid) && (1200..=1800).contains(&preferred), "{addresses}");
    let text = String::from_utf8(echo.ask("addr").stdout).unwrap();
    assert!(text.contains("dynamic valid_lft 3"), "{text}");
    let routes = echo.told("route show proto ra --json");
    let prefixes: Vec<&Value> = rows(&routes).iter().map(|row| &row["prefix"]).collect();
    assert_eq!(prefixes, ["default", "2001:db8:7::/64"], "{routes}");
    assert!(routes[0]["gateway"].as_str().unwrap().starts_with("fe80::"), "{routes}");
    assert!((1200..=1800).contains(&routes[0]["expires"].as_u64().unwrap()), "{routes}");
    let to = SocketAddr::new(address.parse().unwrap(), 7);
    let until = Instant::now() + MINUTE;
    near.enter(|| {
        loop {
            match TcpStream::connect(to) {
                Ok(mut stream) => break says_and_hears(&mut stream),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    })
    .unwrap();
    // What routers have said goes when they are to be heard no more.
    echo.told("addr del auto6");
    let addresses = echo.told("addr --json");
    assert!(rows(&addresses).iter().all(|row| row["dynamic"] == false), "{addresses}");
    assert_eq!(echo.told("route show proto ra --json"), serde_json::json!([]));
    assert_eq!(echo.ask("addr del auto6").status.code(), Some(2), "it is not on");
    echo.end();
}

#[test]
fn vlans_of_one_port_are_links_of_their_own() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&[]);
    let name = &pair.far.name;
    let addresses =
        [".7=10.9.7.2/24", ".8=10.9.8.2/24", "=10.9.0.2/24"].map(|rest| format!("--addr|{name}{rest}"));
    let echo = Instance::start(
        &far,
        &format!("tcp|http|--port|xdp:{name}|--vlan|7|--vlan|8|{}", addresses.join("|")),
    );
    let shown = echo.told("addr --json");
    let interfaces: Vec<String> =
        rows(&shown).iter().map(|row| row["interface"].as_str().unwrap().to_owned()).collect();
    assert_eq!(interfaces, [format!("{name}.7"), format!("{name}.8"), name.clone()], "{shown}");
    let asked = |vlan: &str, to: &str, from: &str, wanted: (i32, u64)| {
        let place = format!("--force|--port|xdp:{}{vlan}|--addr|{from}", pair.near.name);
        let (code, summary) = client(
            &near,
            &format!(
                "tcp|load|http|{to}|--requests|50|--duration|{}|{place}",
                if wanted.0 == 0 { "60s" } else { "3s" }
            ),
        );
        assert_eq!(
            (code, summary["requests"].as_u64()),
            (Some(wanted.0), Some(wanted.1)),
            "{vlan} {to}: {summary}"
        );
    };
    asked("|--vlan|7", "10.9.7.2:80", "10.9.7.1/24", (0, 50));
    asked("|--vlan|8", "10.9.8.2:80", "10.9.8.1/24", (0, 50));
    asked("", "10.9.0.2:80", "10.9.0.1/24", (0, 50));
    // The address is on another VLAN: nobody answers for it here.
    asked("|--vlan|8", "10.9.7.2:80", "10.9.7.1/24", (1, 0));
    echo.end();
}

#[test]
fn sockets_tell_their_timers_their_memory_and_how_many_they_are() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let name = &pair.far.name;
    let echo =
        Instance::start(&far, &format!("tcp|echo|--keepalive|60s|--port|xdp:{name}|--addr|10.9.0.2/24"));
    near.enter(|| {
        let mut stream = TcpStream::connect(("10.9.0.2", 7)).unwrap();
        says_and_hears(&mut stream);
        // Until Linux has acknowledged, the timer is that of what it was sent.
        let mut shown = echo.told("sockets -o -m --json state established");
        for _ in 0..50 {
            if shown[0]["timer"]["name"] == "keepalive" {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            shown = echo.told("sockets -o -m --json state established");
        }
        let (timer, memory) = (&shown[0]["timer"], &shown[0]["memory"]);
        assert_eq!((&timer["name"], &timer["retrans"]), (&"keepalive".into(), &0.into()), "{shown}");
        assert!((50_000_000..=60_000_000).contains(&timer["expires_us"].as_u64().unwrap()), "{shown}");
        assert_eq!((&memory["rmem"], &memory["wmem"]), (&0.into(), &0.into()), "{shown}");
        let text = String::from_utf8(echo.ask("sockets -om state established").stdout).unwrap();
        let written = text.contains(" timer:(keepalive,5") && text.contains("sec,0)\n      skmem:(r0,rb");
        assert!(written && text.trim_end().ends_with(')'), "{text}");
        let plain = echo.told("sockets --json state established");
        assert!(
            plain[0].is_object() && plain[0]["timer"].is_null() && plain[0]["memory"].is_null(),
            "{plain}"
        );
        let of = |total: u64, ipv4: u64, ipv6: u64| json!({ "total": total, "ipv4": ipv4, "ipv6": ipv6 });
        let expected = json!({
            "established": 1, "listening": 1, "syn_received": 0, "time_wait": 0, "orphaned": 0,
            "tcp": of(2, 2, 1), "udp": of(0, 0, 0),
        });
        assert_eq!(echo.told("sockets -s --json"), expected);
        let text = String::from_utf8(echo.ask("sockets -s").stdout).unwrap();
        assert!(text.starts_with("Total: 2\nTCP:   2 (estab 1, listen 1, "), "{text}");
        assert!(text.ends_with("TCP        2      2   1\n"), "{text}");
        assert_eq!(echo.ask("sockets -s -t").status.code(), Some(2));
    })
    .unwrap();
    echo.end();
}
