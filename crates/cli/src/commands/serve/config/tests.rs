//! What files and flags mean, and which are refused.

use super::*;

#[test]
fn a_file_says_what_flags_say() {
    let file = "name = 'web'\nforward = true\naccept_redirects = false\n[[port]]\nport = 'xdp:eth1'\n\
                addresses = ['10.0.0.2/24', '10.0.0.3/24 dad']\n[[port]]\nport = 'tap:t'\n[[route]]\nprefix = 'default'\nvia = '10.0.0.1'\n\
                src = '10.0.0.3'\n";
    let read = parse(file).unwrap();
    let ports: Vec<PortName> = ["xdp:eth1", "tap:t"].map(|name| name.parse().unwrap()).to_vec();
    let addresses = ["eth1=10.0.0.2/24", "eth1=10.0.0.3/24 dad"].map(String::from);
    let routes = ["default via 10.0.0.1 src 10.0.0.3".to_owned()];
    let flags = Flags { ports: &ports, vlans: &[], addresses: &addresses, routes: &routes };
    let typed = Config::of(&flags).unwrap();
    let dad = |address: &WantedAddress| matches!(address.what, What::Given { dad: true, .. });
    assert_eq!(read.addresses.iter().map(dad).collect::<Vec<_>>(), [false, true]);
    assert_eq!((read.name.as_deref(), read.forward, read.no_redirects), (Some("web"), true, true));
    assert!(!parse("name = 'web'").unwrap().no_redirects);
    assert_eq!((&read.ports, meant(&read)), (&typed.ports, meant(&typed)));
}

/// Addresses and routes, wherever they are from.
fn meant(config: &Config) -> String {
    let mut config = config.clone();
    config.addresses.iter_mut().for_each(|address| address.at = None);
    config.routes.iter_mut().for_each(|route| (route.at, route.source_at) = (None, None));
    format!("{:?} {:?}", config.addresses, config.routes)
}

#[test]
fn a_mistake_is_found_by_line_and_column() {
    for (file, line, column, says) in [
        ("name = \"web\nforward = true", 1, 12, "string"),
        ("forward = 3", 1, 11, "boolean"),
        ("forward = true\n[port]\nport = 'xdp:eth1'", 2, 1, "there may be several: write [[port]]"),
        ("accept_redirects = 0", 1, 20, "boolean"),
        ("[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24', '10.0.0.3/99']", 3, 29, "10.0.0.3/99"),
        ("[[port]]\nport = 'nic:eth1'", 2, 8, "nic:eth1"),
        ("[[port]]\nport = 'xdp:eth1'\nmtu = 5", 3, 1, "mtu"),
        ("[[route]]\nprefix = 'default'\nvia = 'eth1'", 3, 7, "'eth1' is no address"),
        ("[[route]]\nprefix = '10.0.0.1/8'", 2, 10, "bits beyond its length"),
        ("[[route]]\nprefix = '10.0.0.0/8'\nvia = 'fd00::1'", 3, 7, "different families"),
        ("[[route]]\nprefix = 'default'\ndev = 'eth1'", 3, 7, "there is no interface 'eth1'"),
        ("[[route]]\nprefix = 'default'", 2, 10, "by which interface?"),
        ("[[route]]\nprefix = 'default'\nmetric = -1", 3, 10, "-1"),
        ("[[route]]\nprefix = 'default'\nsrc = 'eth1'", 3, 7, "'eth1' is no address"),
        ("[[route]]\nprefix = '10.0.0.0/8'\nsrc = 'fd00::1'", 3, 7, "its source are of different families"),
        ("[[route]]\nprefix = 'default'\nsrc = 'fe80::1%eth1'", 3, 7, "there is no interface 'eth1'"),
        ("[[port]]\nport = 'tap:t'\nvlan = 4095", 3, 8, "from 1 to 4094"),
        ("[[port]]\nport = 'tap:t'\n[[port]]\nport = 'tap:t'", 4, 8, "tap:t is there twice"),
        ("[tcp]\nmaxseg = 20", 2, 10, "from 88 to 32767"),
        ("[tcp]\nsack = false\nkeepalive_time = '5d'", 3, 18, "5d: 'd' is no unit of time"),
        ("[tcp]\nrmem_max = true", 2, 12, "a number and its unit in quotes"),
        ("[tcp]\ncongestion_control = 'bbr'", 2, 22, "write cubic or newreno"),
        ("[tcp]\nwindow = 5", 2, 1, "window"),
        (
            "[[port]]\nport = 'xdp:eth1.7'\n[[port]]\nport = 'xdp:eth1'\nvlan = 7",
            4,
            8,
            "two interfaces would be called eth1.7, of xdp:eth1.7 and xdp:eth1 (VLAN 7)",
        ),
        ("[[port]]\nport = 'tap:a'\n[[port]]\nport = 'packet:a'", 4, 8, "two interfaces would be called a"),
    ] {
        let (at, what) = parse(file).unwrap_err();
        assert_eq!(place(file, at), (line, column), "{file}: {what}");
        assert!(what.contains(says) && !what.contains('\n'), "{what}");
    }
}

/// What a file says and a flag says otherwise is nobody's mistake.
#[test]
fn flags_come_before_a_file_that_makes_no_sense_without_them() {
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        tcp: Settings,
    }

    let merged = |file: &str, flags: &str| {
        let Typed { name, tcp } =
            Typed::try_parse_from(std::iter::once("x").chain(flags.split_whitespace())).unwrap();
        let source = Some(Source { name: "web.toml".into(), text: file.into() });
        Config { source, ..parse(file).unwrap() }.with_flags(name, tcp).map_err(|failure| failure.to_string())
    };
    let named = "forward = true\nname = 'a b/../c'";
    let sized = "forward = true\n[tcp]\nrmem_default = '8M'";
    assert_eq!(merged(named, "--name web").unwrap().name.as_deref(), Some("web"));
    let limits = merged(sized, "--rmem-max 16M").unwrap().tcp.limits().unwrap();
    assert_eq!((limits.receive_initial, limits.receive_max), (8 << 20, 16 << 20));
    for (file, flags, says) in [
        (named, "", "web.toml:2:8: 'a b/../c' is no name for an instance"),
        ("name = ''", "--rmem-max 16M", "web.toml:1:8: '' is no name for an instance"),
        (sized, "", "web.toml:2:1: rmem_default, rmem_max: at first more than at most"),
        (sized, "--wmem-max 16M", "web.toml:2:1: rmem_default, rmem_max: at first more than at most"),
        (
            "[tcp]\nrmem_max = '64K'",
            "--rmem-default 1M",
            "rmem_default, rmem_max: at first more than at most",
        ),
    ] {
        let why = merged(file, flags).unwrap_err();
        assert!(why.starts_with(says), "{why}");
    }
}

#[test]
fn vlans_are_interfaces_of_their_own() {
    let file = "[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24']\n[[port]]\nport = 'xdp:eth1'\nvlan = 7\n\
                addresses = ['auto6']\n[[port]]\nport = 'xdp:eth2'\nvlan = 7\n[[route]]\nprefix = 'default'\n\
                dev = 'eth2.7'\n";
    let read = parse(file).unwrap();
    let ports: Vec<PortName> = ["xdp:eth1", "xdp:eth2"].map(|name| name.parse().unwrap()).to_vec();
    let of = |ports, vlans: &[&str], addresses: &[&str], routes: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (vlans, addresses, routes) = (owned(vlans), owned(addresses), owned(routes));
        Config::of(&Flags { ports, vlans: &vlans, addresses: &addresses, routes: &routes })
    };
    let typed =
        of(&ports, &["eth1=7", "eth2=7"], &["eth1=10.0.0.2/24", "eth1.7=auto6"], &["default dev eth2.7"])
            .unwrap();
    assert_eq!(read.names(), "eth1, eth1.7, eth2.7");
    assert_eq!((&read.ports, &read.interfaces), (&typed.ports, &typed.interfaces));
    assert_eq!(meant(&read), meant(&typed));
    let alone = of(&ports[..1], &["7"], &["10.0.0.2/24"], &[]).unwrap();
    assert_eq!((alone.names().as_str(), alone.interfaces), ("eth1.7", vec![(0, Some(7))]));
    // Untagged packets as well, where anything names them.
    for (address, route) in [
        ("eth1=10.0.0.2/24", "default6 dev eth1.7"),
        ("xdp:eth1=10.0.0.2/24", "default6 dev eth1.7"),
        ("eth1.7=10.0.7.2/24", "default6 dev eth1"),
        ("eth1.7=10.0.7.2/24", "default6 dev xdp:eth1"),
        ("eth1.7=10.0.7.2/24", "default6 via fe80::1%eth1"),
        ("eth1.7=10.0.7.2/24", "default6 via fe80::1%xdp:eth1"),
        ("eth1.7=10.0.7.2/24", "default6 src fe80::2%eth1"),
    ] {
        let both = of(&ports[..1], &["7"], &[address], &[route]).unwrap();
        assert_eq!(both.interfaces, [(0, None), (0, Some(7))], "{address} {route}");
    }
    let tagged = of(&ports[..1], &["7"], &["eth1.7=10.0.7.2/24"], &["default6 via fe80::1%eth1.7"]).unwrap();
    assert_eq!(tagged.names(), "eth1.7");
    for (vlans, addresses, says) in [
        (&["7"][..], &[][..], "--vlan 7: of which port?"),
        (&["eth1=0"], &[], "from 1 to 4094"),
        (&["eth1=x"], &[], "'x' is no VLAN"),
        (&["eth1=7", "eth1=7"], &[], "VLAN 7 of xdp:eth1 is there twice"),
        (&["eth1=7"], &["eth1.8=10.0.0.2/24"], "there is no interface 'eth1.8', but eth1.7, eth2"),
        (&["eth1=7"], &["10.0.0.2/24"], "of which interface? Write eth1.7=10.0.0.2/24"),
    ] {
        let why = of(&ports, vlans, addresses, &[]).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn a_file_may_have_a_great_many_routes() {
    let port = "[[port]]\nport = 'tap:a'\naddresses = ['10.0.0.1/24']\n[[port]]\nport = 'tap:b'\naddresses = ['10.1.0.1/24']\n";
    // Two of no router, by one of which those of a router lie that no address is beside.
    let direct =
        "[[route]]\nprefix = '10.2.0.0/24'\ndev = 'b'\n[[route]]\nprefix = '10.2.0.0/28'\ndev = 'a'\n";
    let routers = ["10.0.0.9", "10.1.0.9", "10.2.0.9", "10.2.0.99"];
    let route =
        |(n, router)| format!("[[route]]\nprefix = '20.{}.{}.0/24'\nvia = '{router}'\n", n / 256, n % 256);
    let routes: String = (0..40_000).zip(routers.into_iter().cycle()).map(route).collect();
    let path = std::env::temp_dir().join(format!("bywash-routes-{}.toml", std::process::id()));
    std::fs::write(&path, [port, direct, &routes].concat()).unwrap();
    let read = read(&path);
    std::fs::remove_file(&path).unwrap();
    let config = read.unwrap();
    let interfaces: Vec<usize> = config.routes.iter().skip(2).map(|route| route.interface).collect();
    assert_eq!(interfaces, [0, 1, 0, 1].repeat(10_000));
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let ports: Vec<PortName> = ["tap:a", "tap:b"].map(|name| name.parse().unwrap()).to_vec();
    let refused = |addresses: &str, route: &str| {
        let one = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_owned()] };
        let (addresses, routes) = (one(addresses), one(route));
        Config::of(&Flags { ports: &ports, vlans: &[], addresses: &addresses, routes: &routes })
            .unwrap_err()
            .to_string()
    };
    assert!(refused("10.0.0.1/24", "").contains("a=10.0.0.1/24"));
    assert!(refused("c=10.0.0.1/24", "").contains("but a, b"));
    assert!(refused("a=10.0.0.1", "").contains("prefix length"));
    assert!(refused("a=10.0.0.1/24 nodad", "").contains("'nodad' is not known"));
    assert!(refused("a=10.0.0.1/24 dad twice", "").contains("'twice' is not known"));
    assert!(refused("", "default via").contains("nothing follows 'via'"));
    assert!(refused("", "default via 10.0.0.1 via 10.0.0.2").contains("'via' is there twice"));
    assert!(refused("", "default dev a metric 0 dev b").contains("'dev' is there twice"));
    assert!(refused("", "default dev a metric 0 metric 0").contains("'metric' is there twice"));
    assert!(refused("", "default dev a src 10.0.0.1 src 10.0.0.2").contains("'src' is there twice"));
    assert!(refused("", "default via fe80::9%a src fe80::1%b").contains("on which of the two links"));
    assert!(refused("", "default dev a metric x").contains("'x' is no metric"));
    assert!(refused("", "default by 10.0.0.1").contains("'by' is not known"));
    assert!(refused("", "default via 10.0.0.1").contains("by which interface? Name it (dev): a, b"));
    assert!(refused("", "10.0.0.0/8 via fd00::1 dev a").contains("different families"));
}
