//! Primitives that begin with a word of their own: `vlan`, `less`, `llc`, and ours.

use super::error::Fault;
use super::lexer::What;
use super::parser::Parser;
use super::syntax::{ByteTest, Direction, Fragments, Layer, Llc, Primitive, TransportTest};
use super::words::foreign;

impl Parser<'_> {
    /// Primitives that begin with a word of their own.
    pub(super) fn standalone(&mut self, word: &str) -> Result<Option<Primitive>, Fault> {
        let start = self.next;
        self.next += 1;
        let primitive = match word {
            "less" => Primitive::Less(self.number("less")?),
            "greater" => Primitive::Greater(self.number("greater")?),
            "byte" => {
                let offset = self.number("byte")?;
                let test = self.byte_test()?;
                Primitive::Byte(offset, test, self.number("byte")?)
            }
            "vlan" => Primitive::Vlan(self.up_to(4095, "a VLAN identifier")?),
            "mpls" => Primitive::Mpls(self.up_to(0xf_ffff, "an MPLS label")?),
            "pppoed" => Primitive::PppoeDiscovery,
            "pppoes" => Primitive::PppoeSession(self.up_to(0xffff, "a PPPoE session")?),
            "geneve" => Primitive::Geneve(self.up_to(0xff_ffff, "a Geneve VNI")?),
            "llc" => Primitive::Llc(self.llc()?),
            "anyvlan" => Primitive::AnyVlan,
            "l4" => self.transport()?,
            "fragment" => Primitive::Fragment(self.fragments()),
            _ => {
                self.next = start;
                return if foreign(word).is_some() { Err(self.foreign_here(word)) } else { Ok(None) };
            }
        };
        Ok(Some(primitive))
    }

    /// A number that may be left out, where it is not too great.
    fn up_to(&mut self, greatest: u32, kind: &str) -> Result<Option<u32>, Fault> {
        let at = self.here();
        match self.optional_number() {
            Some(number) if number > greatest => {
                Err(Fault::new(at, format!("{number} is too great for {kind}: {greatest} is the greatest")))
            }
            number => Ok(number),
        }
    }

    /// `l4 [tcp|udp|sctp] [src|dst] port N`, `portrange N-M`, `l4 proto N`.
    fn transport(&mut self) -> Result<Primitive, Fault> {
        let layer = match self.word().and_then(Layer::of) {
            Some(layer @ (Layer::Tcp | Layer::Udp | Layer::Sctp)) => {
                self.next += 1;
                Some(layer)
            }
            _ => None,
        };
        let direction = self.direction().unwrap_or(Direction::Either);
        let at = self.here();
        let word = self.word();
        self.next += 1;
        let value_at = self.here();
        let test = match word {
            Some("port") => TransportTest::Port(layer, self.id("'l4 port'")?),
            Some("portrange") => TransportTest::PortRange(layer, self.id("'l4 portrange'")?),
            Some("proto") if layer.is_none() && direction == Direction::Either => {
                TransportTest::Protocol(self.id("'l4 proto'")?)
            }
            _ => {
                return Err(Fault::new(at, "'l4' needs 'port', 'portrange' or 'proto'")
                    .cure("as in 'l4 tcp dst port 443'"));
            }
        };
        Ok(Primitive::Transport(direction, test, value_at))
    }

    fn fragments(&mut self) -> Fragments {
        let fragments = match self.peek().map(|token| &token.what) {
            Some(What::Name(name)) if name == "first" => Fragments::First,
            Some(What::Name(name)) if name == "later" => Fragments::Later,
            _ => return Fragments::Any,
        };
        self.next += 1;
        fragments
    }

    fn llc(&mut self) -> Result<Llc, Fault> {
        let at = self.here();
        let name = match self.peek().map(|token| &token.what) {
            Some(What::Name(name)) => name.clone(),
            // tcpdump's keyword for pflog's rule numbers is also the name of a supervisory frame.
            Some(What::Word("rnr")) => "rnr".into(),
            _ => return Ok(Llc::Any),
        };
        self.next += 1;
        let named =
            |table: &[(&str, u32)]| table.iter().find(|(word, _)| *word == name).map(|(_, bits)| *bits);
        match name.as_str() {
            "i" => return Ok(Llc::I),
            "s" => return Ok(Llc::S(None)),
            "u" => return Ok(Llc::U(None)),
            _ => {}
        }
        named(SUPERVISORY)
            .map(|bits| Llc::S(Some(bits)))
            .or_else(|| named(UNNUMBERED).map(|bits| Llc::U(Some(bits))))
            .ok_or_else(|| {
                Fault::new(at, format!("'{name}' is no kind of LLC frame"))
                    .cure("i, s, u, rr, rnr, rej, ui, ua, disc, sabme, test, xid or frmr")
            })
    }

    fn byte_test(&mut self) -> Result<ByteTest, Fault> {
        let at = self.here();
        let word = self.word();
        self.next += 1;
        Ok(match word {
            Some("=") => ByteTest::Equal,
            Some("<") => ByteTest::Less,
            Some(">") => ByteTest::Greater,
            Some("&") => ByteTest::And,
            Some("|") => ByteTest::Or,
            _ => return Err(Fault::new(at, "'byte N' needs =, <, >, & or | after it")),
        })
    }
}

/// The control fields of supervisory and unnumbered LLC frames by name (IEEE 802.2).
const SUPERVISORY: &[(&str, u32)] = &[("rr", 0x01), ("rnr", 0x05), ("rej", 0x09)];
const UNNUMBERED: &[(&str, u32)] = &[
    ("ui", 0x03),
    ("ua", 0x63),
    ("disc", 0x43),
    ("dm", 0x0f),
    ("sabme", 0x6f),
    ("test", 0xe3),
    ("xid", 0xaf),
    ("frmr", 0x87),
];
