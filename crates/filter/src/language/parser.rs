//! From tokens to a syntax tree, by recursive descent.
//!
//! `and` and `or` weigh the same and group from left to right, `not` binds tighter. A value without qualifiers takes
//! those of the value before it: `port 80 or 443`.

use super::arithmetic;
use super::error::Fault;
use super::lexer::{Token, What, tokens};
use super::syntax::{
    ByteTest, Connective, Direction, Fragments, Id, Kind, Layer, Llc, Primitive, Qualifiers, Relation,
    Syntax, TransportTest,
};
use super::words::meant;

/// How many parentheses, brackets and `not`s may be nested.
pub(super) const DEEPEST: usize = 100;

/// The syntax tree of an expression; `None` when it is empty, which matches everything.
pub(crate) fn parse(text: &str) -> Result<Option<Syntax>, Fault> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, end: text.len(), depth: 0 };
    if parser.tokens.is_empty() {
        return Ok(None);
    }
    let (syntax, _) = parser.expression(Carried::Nothing)?;
    if let Some(token) = parser.peek() {
        let fault = match &token.what {
            What::Word(")") => Fault::new(token.at, "')' closes no '('"),
            _ => {
                let what = format!("{} can't follow here", shown(&token.what));
                let cure = match parser.tokens.get(parser.next.wrapping_sub(1)) {
                    Some(Token { what: What::Name(name), .. }) => {
                        meant(name).map(|word| format!("did you mean '{word}' for '{name}'?"))
                    }
                    _ => None,
                };
                Fault::new(token.at, what)
                    .cure(cure.unwrap_or_else(|| "write 'and' or 'or' between two parts".into()))
            }
        };
        return Err(fault);
    }
    Ok(Some(syntax))
}

/// The qualifiers that a value without any takes.
#[derive(Clone, Copy)]
enum Carried {
    /// The part before was no value with qualifiers.
    Nothing,
    From(Qualifiers),
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    next: usize,
    end: usize,
    depth: usize,
}

impl Parser {
    fn expression(&mut self, before: Carried) -> Result<(Syntax, Carried), Fault> {
        let (first, mut carried) = self.operand(before, false)?;
        let mut rest = Vec::new();
        while let Some(connective) = self.connective() {
            let (part, from) = self.operand(carried, true)?;
            carried = from;
            rest.push((connective, part));
        }
        Ok((if rest.is_empty() { first } else { Syntax::Chain(Box::new(first), rest) }, carried))
    }

    fn connective(&mut self) -> Option<Connective> {
        let connective = match self.word()? {
            "and" => Connective::And,
            "or" => Connective::Or,
            _ => return None,
        };
        self.next += 1;
        Some(connective)
    }

    /// One part of an expression. `bare`: it may be a value without qualifiers.
    fn operand(&mut self, carried: Carried, bare: bool) -> Result<(Syntax, Carried), Fault> {
        match self.word() {
            Some("not") => self.nested(|parser| {
                parser.next += 1;
                let (part, from) = parser.operand(carried, bare)?;
                Ok((Syntax::Not(Box::new(part)), from))
            }),
            Some("(") if !arithmetic::group_follows(&self.tokens[self.next..]) => match carried {
                Carried::From(qualifiers) if bare && self.values_follow() => {
                    Ok((self.values(qualifiers)?, carried))
                }
                _ => self.nested(|parser| {
                    let open = parser.here();
                    parser.next += 1;
                    let (inner, _) = parser.expression(carried)?;
                    parser.close(open)?;
                    Ok((inner, carried))
                }),
            },
            _ => self.term(carried, bare),
        }
    }

    /// Whether a parenthesis holds values, as in `port 80 or (443 or 22)`.
    fn values_follow(&self) -> bool {
        let skipped = self.tokens[self.next..]
            .iter()
            .take_while(|token| matches!(token.what, What::Word("(" | "not")))
            .count();
        let inner = &self.tokens[self.next + skipped..];
        match inner.first().map(|token| &token.what) {
            None | Some(What::Word(_)) => false,
            Some(What::Number(_)) => !arithmetic::operator_follows(&inner[1..]),
            Some(_) => true,
        }
    }

    /// A value, or values in parentheses, for qualifiers that stand before them.
    fn values(&mut self, qualifiers: Qualifiers) -> Result<Syntax, Fault> {
        match self.word() {
            Some("not") => self.nested(|parser| {
                parser.next += 1;
                Ok(Syntax::Not(Box::new(parser.values(qualifiers)?)))
            }),
            Some("(") => self.nested(|parser| {
                let open = parser.here();
                parser.next += 1;
                let first = parser.values(qualifiers)?;
                let mut rest = Vec::new();
                while let Some(connective) = parser.connective() {
                    rest.push((connective, parser.values(qualifiers)?));
                }
                parser.close(open)?;
                Ok(if rest.is_empty() { first } else { Syntax::Chain(Box::new(first), rest) })
            }),
            _ => {
                let at = self.here();
                let id = self.id(&described(qualifiers))?;
                Ok(Syntax::Primitive(Primitive::Address(qualifiers, id), at))
            }
        }
    }

    fn term(&mut self, carried: Carried, bare: bool) -> Result<(Syntax, Carried), Fault> {
        let at = self.here();
        if arithmetic::follows(&self.tokens[self.next..]) {
            let compare = self.comparison()?;
            return Ok((Syntax::Primitive(compare, at), Carried::Nothing));
        }
        let Some(token) = self.peek() else {
            return Err(Fault::new(self.end, "something is missing at its end")
                .cure("a protocol or a qualifier such as 'host', 'port' or 'tcp'"));
        };
        match token.what.clone() {
            What::Word(word) => self.keyword(word, at),
            what => match carried {
                Carried::From(qualifiers) if bare => Ok((self.values(qualifiers)?, carried)),
                _ => Err(unqualified(&what, at)),
            },
        }
    }

    fn keyword(&mut self, word: &'static str, at: usize) -> Result<(Syntax, Carried), Fault> {
        if let Some(primitive) = self.standalone(word, at)? {
            return Ok((Syntax::Primitive(primitive, at), Carried::Nothing));
        }
        let layer = Layer::of(word);
        if layer.is_some() {
            self.next += 1;
        }
        match self.word() {
            Some("broadcast") => {
                self.next += 1;
                return Ok((Syntax::Primitive(Primitive::Broadcast(layer), at), Carried::Nothing));
            }
            Some("multicast") => {
                self.next += 1;
                return Ok((Syntax::Primitive(Primitive::Multicast(layer), at), Carried::Nothing));
            }
            _ => {}
        }
        let direction = self.direction();
        let kind = self.kind(direction)?;
        let qualifiers = Qualifiers { layer, direction, kind };
        if direction.is_none() && kind.is_none() {
            return match layer {
                Some(layer) => Ok((Syntax::Primitive(Primitive::Layer(layer), at), Carried::Nothing)),
                None => Err(self.misplaced(word, at)),
            };
        }
        Ok((self.values(qualifiers)?, Carried::From(qualifiers)))
    }

    /// Primitives that begin with a word of their own.
    fn standalone(&mut self, word: &str, at: usize) -> Result<Option<Primitive>, Fault> {
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
            "vlan" => Primitive::Vlan(self.optional_number()),
            "mpls" => Primitive::Mpls(self.optional_number()),
            "pppoed" => Primitive::PppoeDiscovery,
            "pppoes" => Primitive::PppoeSession(self.optional_number()),
            "geneve" => Primitive::Geneve(self.optional_number()),
            "llc" => Primitive::Llc(self.llc()?),
            "anyvlan" => Primitive::AnyVlan,
            "l4" => self.transport()?,
            "fragment" => Primitive::Fragment(self.fragments()),
            "gateway" => {
                return Err(Fault::new(
                    at,
                    "'gateway' is not supported: it needs tables that name the gateway's Ethernet address",
                )
                .cure("write 'ether host MAC and not host IP'"));
            }
            "inbound" | "outbound" | "ifindex" => {
                return Err(Fault::new(
                    at,
                    format!("'{word}' is not supported: it asks what stands in no packet"),
                ));
            }
            "radio" | "type" | "subtype" | "dir" | "addr1" | "addr2" | "addr3" | "addr4" | "ra" | "ta" => {
                return Err(Fault::new(at, format!("'{word}' is for 802.11 frames; this is Ethernet")));
            }
            "lane" | "metac" | "bcc" | "oamf4" | "oam" | "ilmic" | "vpi" | "vci" | "connectmsg"
            | "metaconnect" => {
                return Err(Fault::new(at, format!("'{word}' is for ATM cells; this is Ethernet")));
            }
            "on" | "rset" | "rnr" | "srnr" | "reason" | "action" => {
                return Err(Fault::new(at, format!("'{word}' is for OpenBSD's pflog; this is Ethernet")));
            }
            _ => {
                self.next = start;
                return Ok(None);
            }
        };
        Ok(Some(primitive))
    }

    fn misplaced(&self, word: &str, at: usize) -> Fault {
        match word {
            "and" | "or" => Fault::new(at, format!("'{word}' has nothing before it")),
            ")" => Fault::new(at, "')' closes no '('"),
            _ => Fault::new(at, format!("'{word}' can't stand here")),
        }
    }

    fn direction(&mut self) -> Option<Direction> {
        let side = |word: Option<&str>| match word {
            Some("src") => Some(Direction::Source),
            Some("dst") => Some(Direction::Destination),
            _ => None,
        };
        let first = side(self.word())?;
        self.next += 1;
        let second = side(self.word_at(self.next + 1)).filter(|second| *second != first);
        let joined = match (self.word(), second) {
            (Some("or"), Some(_)) => Direction::Either,
            (Some("and"), Some(_)) => Direction::Both,
            _ => return Some(first),
        };
        // `src and dst port 80` joins; `src a and dst b` does not come here.
        self.next += 2;
        Some(joined)
    }

    fn kind(&mut self, direction: Option<Direction>) -> Result<Option<Kind>, Fault> {
        let kind = match self.word() {
            Some("host") => Kind::Host,
            Some("net") => Kind::Net,
            Some("port") => Kind::Port,
            Some("portrange") => Kind::PortRange,
            Some(word @ ("proto" | "protochain")) => {
                if direction.is_some() {
                    return Err(Fault::new(self.here(), format!("'{word}' has no direction"))
                        .cure("leave out 'src' or 'dst'"));
                }
                if word == "proto" { Kind::Proto } else { Kind::ProtoChain }
            }
            Some("gateway") => return self.standalone("gateway", self.here()).map(|_| None),
            _ => return Ok(None),
        };
        self.next += 1;
        Ok(Some(kind))
    }

    fn id(&mut self, after: &str) -> Result<Id, Fault> {
        let at = self.here();
        let Some(token) = self.peek() else {
            return Err(Fault::new(self.end, format!("a value is missing after {after}")));
        };
        let what = token.what.clone();
        self.next += 1;
        Ok(match what {
            What::Name(name) => Id::Name(name),
            What::Number(number) => Id::Number(number),
            What::Mac(mac) => Id::Mac(mac),
            What::Dotted(parts) => match self.word() {
                Some("/") => {
                    self.next += 1;
                    Id::DottedPrefix(parts, self.number("/")?)
                }
                Some("mask") => {
                    self.next += 1;
                    let at = self.here();
                    match self.peek().map(|token| token.what.clone()) {
                        Some(What::Dotted(mask)) => {
                            self.next += 1;
                            Id::DottedMask(parts, mask)
                        }
                        _ => {
                            return Err(
                                Fault::new(at, "a mask is missing after 'mask'").cure("255.255.0.0, say")
                            );
                        }
                    }
                }
                _ => Id::Dotted(parts),
            },
            What::V6(address) if self.word() == Some("/") => {
                self.next += 1;
                Id::V6Prefix(address, self.number("/")?)
            }
            What::V6(address) => Id::V6(address),
            What::Word(word) => {
                let cure = if Layer::of(word).is_some() || word.bytes().all(|b| b.is_ascii_alphanumeric()) {
                    format!("'{word}' is a keyword; write \\{word} when the name is meant")
                } else {
                    "a name, a number or an address must stand here".into()
                };
                return Err(Fault::new(at, format!("a value is missing after {after}")).cure(cure));
            }
        })
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
        Ok(Primitive::Transport(direction, test))
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

    fn comparison(&mut self) -> Result<Primitive, Fault> {
        let left = arithmetic::parse(self)?;
        let at = self.here();
        let relation = match self.word() {
            Some("=") => Relation::Equal,
            Some("!=") => Relation::NotEqual,
            Some("<") => Relation::Less,
            Some("<=") => Relation::LessEqual,
            Some(">") => Relation::Greater,
            Some(">=") => Relation::GreaterEqual,
            _ => {
                return Err(
                    Fault::new(at, "a number alone says nothing").cure("compare it: =, !=, <, <=, > or >=")
                );
            }
        };
        self.next += 1;
        Ok(Primitive::Compare(left, relation, arithmetic::parse(self)?))
    }

    pub(super) fn number(&mut self, after: &str) -> Result<u32, Fault> {
        let at = self.here();
        self.optional_number().ok_or_else(|| Fault::new(at, format!("a number is missing after '{after}'")))
    }

    /// A number, also in parentheses.
    fn optional_number(&mut self) -> Option<u32> {
        let opened = self.tokens[self.next.min(self.tokens.len())..]
            .iter()
            .take_while(|token| token.what == What::Word("("))
            .count();
        let Some(What::Number(number)) = self.tokens.get(self.next + opened).map(|token| &token.what) else {
            return None;
        };
        let number = *number;
        let closed = self.tokens[self.next + opened + 1..]
            .iter()
            .take(opened)
            .all(|token| token.what == What::Word(")"));
        let after = self.next + 2 * opened + 1;
        if !closed || after > self.tokens.len() {
            return None;
        }
        self.next = after;
        Some(number)
    }

    pub(super) fn close(&mut self, open: usize) -> Result<(), Fault> {
        match self.peek() {
            Some(token) if token.what == What::Word(")") => {
                self.next += 1;
                Ok(())
            }
            Some(token) => Err(Fault::new(token.at, format!("')' is missing before {}", shown(&token.what)))),
            None => Err(Fault::new(open, "this '(' is never closed")),
        }
    }

    /// Runs `parse` one level deeper.
    pub(super) fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.depth == DEEPEST {
            return Err(Fault::new(self.here(), format!("it is nested more than {DEEPEST} deep here")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    pub(super) fn word(&self) -> Option<&'static str> {
        self.word_at(self.next)
    }

    fn word_at(&self, index: usize) -> Option<&'static str> {
        match self.tokens.get(index)?.what {
            What::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Where the next token stands.
    pub(super) fn here(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
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

fn described(qualifiers: Qualifiers) -> String {
    let direction = match qualifiers.direction {
        None => "",
        Some(Direction::Source) => "src ",
        Some(Direction::Destination) => "dst ",
        Some(Direction::Either) => "src or dst ",
        Some(Direction::Both) => "src and dst ",
    };
    let layer = qualifiers.layer.map(|layer| format!("{} ", layer.word())).unwrap_or_default();
    format!("'{}'", format!("{layer}{direction}{}", qualifiers.kind.map_or("", Kind::word)).trim_end())
}

fn unqualified(what: &What, at: usize) -> Fault {
    match what {
        What::Name(name) => match meant(name) {
            Some(word) => Fault::new(at, format!("'{name}' is no word of the language"))
                .cure(format!("did you mean '{word}'?")),
            None => Fault::new(at, format!("'{name}' is no word of the language"))
                .cure(format!("did you mean 'host {name}'?")),
        },
        What::Number(number) => {
            Fault::new(at, format!("{number} stands alone")).cure(format!("did you mean 'port {number}'?"))
        }
        What::Dotted(_) | What::V6(_) => {
            Fault::new(at, "an address stands alone").cure("write 'host' or 'net' before it")
        }
        What::Mac(_) => {
            Fault::new(at, "an Ethernet address stands alone").cure("write 'ether host' before it")
        }
        What::Word(_) => Fault::new(at, format!("{} can't stand here", shown(what))),
    }
}

/// A token as a user wrote it, about.
pub(super) fn shown(what: &What) -> String {
    match what {
        What::Word(word) => format!("'{word}'"),
        What::Number(number) => format!("'{number}'"),
        What::Name(name) => format!("'{name}'"),
        What::Dotted(parts) => {
            format!("'{}'", parts.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
        }
        What::V6(address) => format!("'{address}'"),
        What::Mac(mac) => format!("'{mac}'"),
    }
}
