//! Each finding has one case that finds it; a good interface has none.

use super::*;
use crate::ethtool::{Channels, Driver, Feature, Pause};
use crate::interface::{Pcie, Peer, XdpProgram};
use crate::netdev::XdpFeatures;

const FRAME: u32 = 2048;

fn good() -> Interface {
    Interface {
        name: "eth1".into(),
        driver: Driver { name: "ixgbe".into(), ..Driver::default() },
        ethernet: true,
        mtu: 1500,
        up: true,
        carrier: true,
        speed_mbps: Some(10_000),
        queues: Channels { rx: 8, tx: 8, max_rx: 8, max_tx: 8 },
        pcie: Some(Pcie { lanes: 8, max_lanes: 8, gigatransfers: 5.0, max_gigatransfers: 5.0 }),
        xdp_features: Some(XdpFeatures {
            native: true,
            redirect: true,
            zero_copy: true,
            ..XdpFeatures::default()
        }),
        pause: Some(Pause::default()),
        ..Interface::default()
    }
}

fn veth() -> Interface {
    Interface {
        kind: Some("veth".into()),
        pcie: None,
        gro: Feature { on: true, changeable: true },
        xdp_features: Some(XdpFeatures { native: true, zero_copy: true, ..XdpFeatures::default() }),
        ..good()
    }
}

/// The one finding of an interface.
fn only(interface: Interface) -> (Severity, String) {
    let found = findings(&interface, FRAME);
    assert_eq!(found.len(), 1, "{found:?}");
    (found[0].severity, found[0].to_string())
}

#[test]
fn a_good_interface_needs_no_advice() {
    assert_eq!(findings(&good(), FRAME), []);
    assert_eq!(findings(&veth(), FRAME), []);
    assert_eq!(would_use(&good(), FRAME), "native XDP, zero-copy, 8 queues");
    let virtio = Interface {
        driver: Driver { name: "virtio_net".into(), ..Driver::default() },
        gro_hw: Feature { on: true, changeable: true },
        queues: Channels { rx: 1, ..Channels::default() },
        ..good()
    };
    assert_eq!(findings(&virtio, FRAME), [], "its driver tells the host");
    let fixed = Interface { gro_hw: Feature { on: true, changeable: false }, ..virtio };
    assert_eq!(would_use(&fixed, FRAME), "generic XDP, copy, 1 queue");
}

#[test]
fn what_would_not_work_is_an_error_with_its_cure() {
    let cases: [(Interface, &str); 3] = [
        (Interface { up: false, carrier: false, ..good() }, "`ip link set eth1 up`"),
        (
            Interface {
                xdp_program: Some(XdpProgram { id: 12, name: "filter".into(), mode: "native" }),
                ..good()
            },
            "number 12 'filter' (native)",
        ),
        (Interface { ethernet: false, ..good() }, "carries no Ethernet frames"),
    ];
    for (interface, part) in cases {
        let (severity, text) = only(interface);
        assert_eq!(severity, Severity::Error, "{text}");
        assert!(text.contains(part) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn what_works_badly_is_a_warning_with_its_cure() {
    let narrow = Pcie { lanes: 1, max_lanes: 8, gigatransfers: 5.0, max_gigatransfers: 5.0 };
    let cases: [(Interface, &str); 7] = [
        (Interface { carrier: false, ..good() }, "has no link"),
        (Interface { pcie: Some(narrow), ..good() }, "x1 at 5 GT/s of x8 at 5: 4.0 Gbit/s"),
        (
            Interface { pause: Some(Pause { rx: true, tx: false, negotiated: true }), ..good() },
            "eth1 obeys pause frames",
        ),
        (Interface { xdp_features: Some(XdpFeatures::default()), ..good() }, "no native XDP"),
        (
            Interface {
                driver: Driver { name: "virtio_net".into(), ..Driver::default() },
                gro_hw: Feature { on: true, changeable: false },
                ..good()
            },
            "ctrl_guest_offloads=on",
        ),
        (Interface { mtu: 9000, ..good() }, "`ip link set eth1 mtu 2026`"),
        (
            Interface {
                queues: Channels { rx: 1, ..Channels::default() },
                peer: Some(Peer { name: "far".into(), tx_queues: 4 }),
                ..veth()
            },
            "(1) than its other end far has transmit queues (4)",
        ),
    ];
    for (interface, part) in cases {
        let (severity, text) = only(interface);
        assert_eq!(severity, Severity::Warning, "{text}");
        assert!(text.contains(part) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn a_veth_with_fewer_queues_than_its_other_end_says_so() {
    // The kernel takes native XDP out of its features; what is elsewhere is not seen.
    let features = veth().xdp_features.map(|features| XdpFeatures { native: false, ..features });
    for (peer, part) in [
        (Some(Peer { name: "far".into(), tx_queues: 9 }), "its other end far has transmit queues (9)"),
        (None, "its other end has transmit queues"),
    ] {
        let (severity, text) = only(Interface { xdp_features: features, peer, ..veth() });
        assert_eq!(severity, Severity::Warning);
        assert!(text.contains(part) && text.contains("make the pair with as many"), "{text}");
    }
}

#[test]
fn what_the_driver_would_refuse_is_not_promised() {
    let long = Interface { mtu: 9000, ..good() };
    assert_eq!(would_use(&long, FRAME), "generic XDP, copy, 8 queues");
    assert_eq!(findings(&long, FRAME)[0].topic, Topic::NativeXdp);
    let several = veth().xdp_features.map(|features| XdpFeatures { multi_buffer: true, ..features });
    let with = |mtu| Interface { mtu, xdp_features: several, ..veth() };
    assert_eq!(would_use(&with(36_843), FRAME), "nothing that receives: the MTU");
    let (severity, text) = only(with(36_843));
    assert_eq!(severity, Severity::Error);
    assert!(text.contains("set it to 36842 or less (`ip link set eth1 mtu 36842`)"), "{text}");
    assert_eq!(would_use(&with(36_842), FRAME), "native XDP, zero-copy, 8 queues");
    let narrow = Interface { peer: Some(Peer { name: "far".into(), tx_queues: 9 }), ..veth() };
    assert_eq!(would_use(&narrow, FRAME), "generic XDP, copy, 8 queues");
}

#[test]
fn what_is_good_to_know_is_a_note() {
    let slower = Pcie { lanes: 8, max_lanes: 8, gigatransfers: 5.0, max_gigatransfers: 8.0 };
    let several = XdpFeatures { multi_buffer: true, ..good().xdp_features.unwrap() };
    let cases: [(Interface, &str); 6] = [
        (Interface { pcie: Some(slower), ..good() }, "32.0 Gbit/s at most"),
        (Interface { mtu: 9000, xdp_features: Some(several), ..good() }, "several frames per packet"),
        (
            Interface { vlan_strip: Feature { on: true, changeable: true }, ..good() },
            "`ethtool -K eth1 rxvlan off`",
        ),
        (Interface { xdp_features: None, ..good() }, "the kernel can't tell"),
        (
            Interface {
                xdp_features: Some(XdpFeatures { native: true, ..XdpFeatures::default() }),
                ..good()
            },
            "has no zero-copy",
        ),
        (Interface { gro: Feature::default(), ..veth() }, "`ethtool -K eth1 gro on`"),
    ];
    for (interface, part) in cases {
        let (severity, text) = only(interface);
        assert_eq!(severity, Severity::Note, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn sockets_are_on_the_ports_of_a_bond_where_its_xdp_is() {
    let features = XdpFeatures { native: true, redirect: true, ..XdpFeatures::default() };
    let bond = Interface {
        name: "bond0".into(),
        kind: Some("bond".into()),
        xdp_features: Some(features),
        ports: vec!["eth1".into(), "eth2".into()],
        ..good()
    };
    for kind in ["bond", "team"] {
        let findings = findings(&Interface { kind: Some(kind.into()), ..bond.clone() }, FRAME);
        let of_sockets: Vec<_> = findings.iter().filter(|finding| finding.topic == Topic::Sockets).collect();
        assert_eq!((of_sockets.len(), of_sockets[0].severity), (1, Severity::Error));
        let text = &of_sockets[0].text;
        assert!(text.contains("open the ports (xdp:eth1, xdp:eth2)") && !text.contains('\n'), "{text}");
    }
    assert_eq!(would_use(&bond, FRAME), "nothing that receives: its ports");
    // Generic XDP sees packets of the bond, and that of a bridge packets of the bridge.
    let generic = Interface { xdp_features: Some(XdpFeatures::default()), ..bond.clone() };
    let bridge = Interface { kind: Some("bridge".into()), ..bond };
    for others in [generic, bridge] {
        assert!(findings(&others, FRAME).iter().all(|finding| finding.topic != Topic::Sockets));
    }
}

#[test]
fn missing_rights_are_named() {
    let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\nCapBnd:\t0\n");
    assert_eq!(lacking(&status(u64::MAX)), None);
    assert_eq!(lacking(&status(1 << 12 | 1 << 13 | 1 << 21)), None, "CAP_SYS_ADMIN includes CAP_BPF");
    assert_eq!(
        lacking(&status(1 << 13)).unwrap(),
        "AF_XDP needs CAP_NET_ADMIN and CAP_BPF, which this process lacks: run it as root"
    );
}
