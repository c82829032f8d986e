//! The syntax tree: what was written, before its meaning is looked up.

use std::net::Ipv6Addr;

use bywash_wire::Mac;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Syntax {
    /// `first and/or second and/or ...`: from left to right, `and` and `or` of equal weight.
    Chain(Box<Self>, Vec<(Connective, Self)>),
    Not(Box<Self>),
    /// A primitive, and where it stands.
    Primitive(Primitive, usize),
}

impl Syntax {
    /// Where its first primitive stands.
    pub(crate) fn at(&self) -> usize {
        match self {
            Self::Chain(first, _) => first.at(),
            Self::Not(inner) => inner.at(),
            Self::Primitive(_, at) => *at,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connective {
    And,
    Or,
}

/// What an expression is built of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Primitive {
    /// `src net 10.0.0.0/8`, `tcp port 80`: qualifiers, a value, and where the value stands.
    Address(Qualifiers, Id, usize),
    /// `tcp`.
    Layer(Layer),
    /// `tcp[13] & 2 != 0`.
    Compare(Arithmetic, Relation, Arithmetic),
    Broadcast(Option<Layer>),
    Multicast(Option<Layer>),
    /// `less N`: at most N bytes.
    Less(u32),
    /// `greater N`: at least N bytes.
    Greater(u32),
    /// `byte N op V`: the byte at N of the frame.
    Byte(u32, ByteTest, u32),
    Vlan(Option<u32>),
    Mpls(Option<u32>),
    PppoeDiscovery,
    PppoeSession(Option<u32>),
    Geneve(Option<u32>),
    Llc(Llc),
    /// Ours: the rest looks behind any number of VLAN tags.
    AnyVlan,
    /// Ours: `l4 ...`, ports and protocols behind IPv6 extension headers. The number is where the value stands.
    Transport(Direction, TransportTest, usize),
    /// Ours: `fragment`, `fragment first`, `fragment later`.
    Fragment(Fragments),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TransportTest {
    Port(Option<Layer>, Id),
    PortRange(Option<Layer>, Id),
    Protocol(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragments {
    Any,
    First,
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteTest {
    Equal,
    Less,
    Greater,
    And,
    Or,
}

/// `llc` and what may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Llc {
    /// Any LLC frame.
    Any,
    /// Information frames.
    I,
    /// Supervisory frames; with a number, only those with this control field.
    S(Option<u32>),
    /// Unnumbered frames; with a number, only those with this control field.
    U(Option<u32>),
}

/// What stands in front of a value. What was left out is `None` or `Either`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualifiers {
    pub(crate) layer: Option<Layer>,
    pub(crate) direction: Option<Direction>,
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Source,
    Destination,
    Either,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
    ProtoChain,
}

/// A value: what is looked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Id {
    Name(String),
    Number(u32),
    /// Two to four numbers between dots.
    Dotted(Vec<u32>),
    /// `10.0.0.0/8`.
    DottedPrefix(Vec<u32>, u32),
    /// `10.0.0.0 mask 255.0.0.0`.
    DottedMask(Vec<u32>, Vec<u32>),
    V6(Ipv6Addr),
    V6Prefix(Ipv6Addr, u32),
    Mac(Mac),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arithmetic {
    Number(u32),
    /// The length of the packet.
    Length,
    /// `layer[index : size]`, and where the layer's name stands.
    Load(Layer, Box<Self>, u32, usize),
    Negate(Box<Self>),
    /// An operation, and where its operator stands.
    Binary(Operator, Box<Self>, Box<Self>, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// A protocol by its keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Ether,
    Ip,
    Arp,
    Rarp,
    Sctp,
    Tcp,
    Udp,
    Icmp,
    Igmp,
    Igrp,
    Pim,
    Vrrp,
    Carp,
    Atalk,
    Aarp,
    Decnet,
    Lat,
    Sca,
    Moprc,
    Mopdl,
    Ip6,
    Icmp6,
    Ah,
    Esp,
    Iso,
    Esis,
    Isis,
    IsisL1,
    IsisL2,
    IsisIih,
    IsisLsp,
    IsisSnp,
    IsisCsnp,
    IsisPsnp,
    Clnp,
    Stp,
    Ipx,
    Netbeui,
}

const LAYERS: &[(&str, Layer)] = &[
    ("ether", Layer::Ether),
    ("ip", Layer::Ip),
    ("arp", Layer::Arp),
    ("rarp", Layer::Rarp),
    ("sctp", Layer::Sctp),
    ("tcp", Layer::Tcp),
    ("udp", Layer::Udp),
    ("icmp", Layer::Icmp),
    ("igmp", Layer::Igmp),
    ("igrp", Layer::Igrp),
    ("pim", Layer::Pim),
    ("vrrp", Layer::Vrrp),
    ("carp", Layer::Carp),
    ("atalk", Layer::Atalk),
    ("aarp", Layer::Aarp),
    ("decnet", Layer::Decnet),
    ("lat", Layer::Lat),
    ("sca", Layer::Sca),
    ("moprc", Layer::Moprc),
    ("mopdl", Layer::Mopdl),
    ("ip6", Layer::Ip6),
    ("icmp6", Layer::Icmp6),
    ("ah", Layer::Ah),
    ("esp", Layer::Esp),
    ("iso", Layer::Iso),
    ("esis", Layer::Esis),
    ("isis", Layer::Isis),
    ("l1", Layer::IsisL1),
    ("l2", Layer::IsisL2),
    ("iih", Layer::IsisIih),
    ("lsp", Layer::IsisLsp),
    ("snp", Layer::IsisSnp),
    ("csnp", Layer::IsisCsnp),
    ("psnp", Layer::IsisPsnp),
    ("clnp", Layer::Clnp),
    ("stp", Layer::Stp),
    ("ipx", Layer::Ipx),
    ("netbeui", Layer::Netbeui),
];

impl Layer {
    pub(crate) fn of(word: &str) -> Option<Self> {
        LAYERS.iter().find(|(name, _)| *name == word).map(|(_, layer)| *layer)
    }

    pub(crate) fn word(self) -> &'static str {
        LAYERS.iter().find(|(_, layer)| *layer == self).map_or("", |(name, _)| name)
    }
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Net => "net",
            Self::Port => "port",
            Self::PortRange => "portrange",
            Self::Proto => "proto",
            Self::ProtoChain => "protochain",
        }
    }
}
