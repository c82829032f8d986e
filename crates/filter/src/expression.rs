//! An expression, read once and ready to run.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use crate::extent::asks_length;
use crate::formula::Formula;
use crate::graph::{Graph, Target, TooLarge};
use crate::impossible::refuse;
use crate::language::{Connective, Fault, ParseError, Primitive, Syntax, parse};
use crate::matcher::Matcher;
use crate::meaning::{Names, SystemNames, meaning};

/// A filter expression. Cloning is cheap. It prints as it was written.
#[derive(Clone)]
pub struct Expression {
    inner: Arc<Inner>,
}

struct Inner {
    text: String,
    graph: Graph,
    matcher: Matcher,
}

/// How an expression is read.
pub struct Options<'a> {
    /// Where names are looked up.
    pub names: &'a dyn Names,
    /// The netmask of the interface that `ip broadcast` asks about.
    pub netmask: Option<Ipv4Addr>,
}

impl Expression {
    /// Reads an expression. An empty one matches every packet.
    ///
    /// # Errors
    /// [`ParseError`] shows the text with a caret under what is wrong.
    pub fn new(text: &str, options: &Options<'_>) -> Result<Self, ParseError> {
        let (_, _, graph) = Self::read(text, options).map_err(|fault| fault.of(text))?;
        Ok(Self::run_by(graph, text))
    }

    /// Reads an expression as [`Self::new`] does, and refuses one that no packet can match, such as `tcp and udp`, where
    /// that is seen.
    ///
    /// # Errors
    /// [`ParseError`] shows the text with a caret under what is wrong, or under the part that leaves no packet.
    pub fn possible(text: &str, options: &Options<'_>) -> Result<Self, ParseError> {
        let (syntax, formula, graph) = Self::read(text, options).map_err(|fault| fault.of(text))?;
        match syntax {
            Some(syntax) if !graph.can_match() => Err(refuse(&syntax, &formula).of(text)),
            _ => Ok(Self::run_by(graph, text)),
        }
    }

    fn read(text: &str, options: &Options<'_>) -> Result<(Option<Syntax>, Formula, Graph), Fault> {
        let syntax = parse(text)?;
        let formula = match &syntax {
            Some(syntax) => meaning(syntax, options.names, options.netmask)?,
            None => Formula::Constant(true),
        };
        let graph = Graph::new(&formula).map_err(|TooLarge| Fault::new(0, "it is too large to be run"))?;
        Ok((syntax, formula, graph))
    }

    fn run_by(graph: Graph, text: &str) -> Self {
        let matcher = Matcher::new(&graph);
        Self { inner: Arc::new(Inner { text: text.trim().into(), graph, matcher }) }
    }

    /// Whether a whole packet matches. It begins with its Ethernet header and has no FCS.
    pub fn matches(&self, packet: &[u8]) -> bool {
        self.matches_len(packet, packet.len())
    }

    /// Whether a packet matches that had `wire_len` bytes, of which `packet` has the first. What asks for bytes that are
    /// not there does not match.
    pub fn matches_len(&self, packet: &[u8], wire_len: usize) -> bool {
        self.inner.matcher.matches(packet, u32::try_from(wire_len).unwrap_or(u32::MAX))
    }

    /// Whether it matches every packet, whatever is in it.
    pub fn matches_all(&self) -> bool {
        self.inner.graph.entry == Target::Match
    }

    /// Whether it matches packets that have nothing in common, as an empty one does: then it hardly leaves any.
    pub fn takes_all_kinds(&self) -> bool {
        KINDS.iter().all(|packet| self.matches(packet))
    }

    /// Whether a packet matches that had `wire_len` bytes, as far as its first bytes tell, `head`: `None` when it is
    /// asked for what stands behind them, or divides by zero.
    pub fn decide(&self, head: &[u8], wire_len: usize) -> Option<bool> {
        self.inner.matcher.decide(head, u32::try_from(wire_len).unwrap_or(u32::MAX))
    }

    /// The VLAN id that it begins with, and what it asks behind that tag: `vlan 7 and ip` is `ip` there.
    pub(crate) fn behind_vlan(&self) -> Option<(u16, Self)> {
        let (first, rest) = match parse(&self.inner.text).ok()?? {
            Syntax::Chain(first, rest) => (*first, rest),
            first => (first, Vec::new()),
        };
        let Syntax::Primitive(Primitive::Vlan(Some(id)), _) = first else { return None };
        if rest.iter().any(|(connective, _)| *connective == Connective::Or) {
            return None;
        }
        let mut rest = rest.into_iter();
        let formula = match rest.next() {
            None => Formula::Constant(true),
            Some((_, first)) => {
                let syntax = Syntax::Chain(Box::new(first), rest.collect());
                meaning(&syntax, &SystemNames, None).ok()?
            }
        };
        let graph = Graph::new(&formula).ok()?;
        Some((id.try_into().ok()?, Self::run_by(graph, &self.inner.text)))
    }

    /// Whether no packet matches it that does not match another expression, as far as that is seen. The other one is read behind
    /// what stands here, so that after `vlan` it is about what is behind that tag.
    pub(crate) fn is_within(&self, other: &str) -> bool {
        let beyond = Self::new(&format!("({self}) and not ({other})"), &Options::default());
        beyond.is_ok_and(|beyond| !beyond.graph().can_match())
    }

    /// Whether packets that another expression matches may match it, too: as far as is seen.
    pub(crate) fn may_match_also(&self, other: &str) -> bool {
        let both = [format!("({other}) and ({self})"), format!("({self}) and ({other})")];
        both.iter()
            .any(|both| Self::new(both, &Options::default()).is_ok_and(|both| both.graph().can_match()))
    }

    /// Whether it asks how long packets are: `len`, `less`, `greater`.
    pub fn asks_length(&self) -> bool {
        asks_length(&self.inner.graph)
    }

    /// What matches no packet.
    pub(crate) fn nothing() -> Self {
        let graph = Graph { entry: Target::NoMatch, nodes: Vec::new(), walks: Vec::new() };
        Self::run_by(graph, "not greater 0")
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.inner.graph
    }
}

/// Packets that have nothing in common: of an EtherType for experiments, ARP, UDP on IPv4, TCP on IPv6.
const KINDS: [[u8; 60]; 4] = [
    packet([0x88, 0xb5], 0, 0),
    packet([0x08, 0x06], 0, 1),
    packet([0x08, 0x00], 0x45, 0x11),
    packet([0x86, 0xdd], 0x60, 0x06),
];

/// An Ethernet frame, with the first byte of what it carries and what stands at both places of an IP protocol.
const fn packet(kind: [u8; 2], first: u8, protocol: u8) -> [u8; 60] {
    let mut bytes = [0; 60];
    (bytes[12], bytes[13]) = (kind[0], kind[1]);
    bytes[14] = first;
    bytes[if first == 0x60 { 14 + 6 } else { 14 + 9 }] = protocol;
    bytes
}

impl FromStr for Expression {
    type Err = ParseError;

    /// Reads an expression that packets can match, with the system's names and no netmask.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::possible(text, &Options::default())
    }
}

impl Default for Options<'_> {
    /// The system's names, no netmask.
    fn default() -> Self {
        Self { names: &SystemNames, netmask: None }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.inner.text)
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.inner.text)
    }
}

impl PartialEq for Expression {
    /// Whether they were written alike.
    fn eq(&self, other: &Self) -> bool {
        self.inner.text == other.inner.text
    }
}
