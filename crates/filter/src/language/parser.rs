//! From tokens to a syntax tree, by recursive descent.
//!
//! `and` and `or` weigh the same and group from left to right, `not` binds tighter. A value without qualifiers takes
//! those of the value before it: `port 80 or 443`.

use super::arithmetic;
use super::error::Fault;
use super::lexer::{Token, What, tokens};
use super::slips::{AS_ADDRESS, RANGE, between, in_place_of};
use super::syntax::{Connective, Direction, Id, Kind, Layer, Primitive, Qualifiers, Relation, Syntax};
use super::words::{foreign, meant};

/// How many parentheses, brackets and `not`s may be nested.
pub(super) const DEEPEST: usize = 100;

/// The syntax tree of an expression; `None` when it is empty, which matches everything.
pub(crate) fn parse(text: &str) -> Result<Option<Syntax>, Fault> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, end: text.len(), depth: 0 };
    if parser.tokens.is_empty() {
        return Ok(None);
    }
    let (syntax, _) = parser.expression(Carried::Nothing)?;
    if let Some(token) = parser.peek().cloned() {
        return Err(match &token.what {
            What::Word(word) if foreign(word).is_some() => parser.foreign_here(word),
            What::Word(")") => Fault::new(token.at, "')' closes no '('"),
            What::Name(name) if in_place_of(name).is_some() => parser.unqualified(&token),
            what => parser.misspelt().unwrap_or_else(|| {
                Fault::new(token.at, format!("'{}' can't follow here", parser.written(&token)))
                    .cure(between(parser.before(), what))
            }),
        });
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

pub(super) struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    pub(super) next: usize,
    end: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
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
                    Ok((self.values(qualifiers, None)?, carried))
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

    /// A value, or values in parentheses, for qualifiers, which stand at `at` or come from before.
    fn values(&mut self, qualifiers: Qualifiers, at: Option<usize>) -> Result<Syntax, Fault> {
        match self.word() {
            Some("not") => self.nested(|parser| {
                parser.next += 1;
                Ok(Syntax::Not(Box::new(parser.values(qualifiers, at)?)))
            }),
            Some("(") => self.nested(|parser| {
                let open = parser.here();
                parser.next += 1;
                let first = parser.values(qualifiers, at)?;
                let mut rest = Vec::new();
                while let Some(connective) = parser.connective() {
                    rest.push((connective, parser.values(qualifiers, at)?));
                }
                parser.close(open)?;
                Ok(if rest.is_empty() { first } else { Syntax::Chain(Box::new(first), rest) })
            }),
            _ => {
                let value_at = self.here();
                let id = self.id(&described(qualifiers))?;
                if qualifiers.layer == Some(Layer::Ether) {
                    self.whole_address(value_at)?;
                }
                Ok(Syntax::Primitive(Primitive::Address(qualifiers, id, value_at), at.unwrap_or(value_at)))
            }
        }
    }

    fn term(&mut self, carried: Carried, bare: bool) -> Result<(Syntax, Carried), Fault> {
        let at = self.here();
        if arithmetic::follows(&self.tokens[self.next..]) {
            let compare = self.comparison()?;
            return Ok((Syntax::Primitive(compare, at), Carried::Nothing));
        }
        let Some(token) = self.peek().cloned() else {
            return Err(Fault::new(self.end, "something is missing at its end")
                .cure("a protocol or a qualifier such as 'host', 'port' or 'tcp'"));
        };
        match token.what {
            What::Word(word) => self.keyword(word, at),
            _ => match carried {
                Carried::From(qualifiers) if bare => Ok((self.values(qualifiers, None)?, carried)),
                _ => Err(self.unqualified(&token)),
            },
        }
    }

    fn keyword(&mut self, word: &'static str, at: usize) -> Result<(Syntax, Carried), Fault> {
        if let Some(primitive) = self.standalone(word)? {
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
        Ok((self.values(qualifiers, Some(at))?, Carried::From(qualifiers)))
    }

    fn misplaced(&self, word: &str, at: usize) -> Fault {
        match word {
            "and" | "or" => {
                let fault = Fault::new(at, format!("'{word}' has nothing before it"));
                match self.before() {
                    Some(What::Word("and" | "or")) => fault.cure("write one of the two"),
                    _ => fault,
                }
            }
            ")" if self.before() == Some(&What::Word("(")) => {
                Fault::new(at, "nothing stands between '(' and ')'")
            }
            ")" if self.is_open() => Fault::new(at, "something is missing before ')'"),
            ")" => Fault::new(at, "')' closes no '('"),
            "mask" => Fault::new(at, "'mask' can't stand here").cure("as in 'net 10.0.0.0 mask 255.0.0.0'"),
            _ => Fault::new(at, format!("'{word}' can't stand here")),
        }
    }

    /// Refuses a name before this place that was taken for a host's, and is nearly a keyword: `src prt 80`.
    fn misspelt(&self) -> Option<Fault> {
        let before = self.tokens.get(self.next.checked_sub(1)?)?;
        let What::Name(name) = &before.what else { return None };
        let fault = Fault::new(before.at, format!("'{name}' is taken for a name here"));
        Some(fault.cure(format!("did you mean '{}'?", meant(name)?)))
    }

    /// Whether a parenthesis is open here.
    fn is_open(&self) -> bool {
        let count =
            |word| self.tokens[..self.next].iter().filter(|token| token.what == What::Word(word)).count();
        count("(") > count(")")
    }

    /// What stands before the next token.
    pub(super) fn before(&self) -> Option<&What> {
        self.tokens.get(self.next.checked_sub(1)?).map(|token| &token.what)
    }

    pub(super) fn direction(&mut self) -> Option<Direction> {
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
            Some("gateway") => return Err(self.foreign_here("gateway")),
            _ => return Ok(None),
        };
        self.next += 1;
        Ok(Some(kind))
    }

    pub(super) fn id(&mut self, after: &str) -> Result<Id, Fault> {
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
                    Id::DottedPrefix(parts, self.prefix(32)?)
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
                Id::V6Prefix(address, self.prefix(128)?)
            }
            What::V6(address) => Id::V6(address),
            What::Word(word) => {
                let cure = if matches!(word, "tcp" | "udp" | "sctp") && after.contains("port") {
                    format!("the protocol comes first: '{word} {}'", after.trim_matches('\''))
                } else if word == "=" {
                    "leave out '='".into()
                } else if word == "-" && after.contains("port") {
                    RANGE.into()
                } else if Layer::of(word).is_some() || word.bytes().all(|b| b.is_ascii_alphanumeric()) {
                    format!("'{word}' is a keyword; write \\{word} when the name is meant")
                } else {
                    "a name, a number or an address must stand here".into()
                };
                return Err(Fault::new(at, format!("a value is missing after {after}")).cure(cure));
            }
        })
    }

    fn prefix(&mut self, longest: u32) -> Result<u32, Fault> {
        let at = self.here();
        let bits = self.number("/")?;
        if bits > longest {
            let what = format!("a prefix of {bits} bits is too long: {longest} is the most");
            return Err(Fault::new(at, what));
        }
        Ok(bits)
    }

    /// Refuses the value at `at` when only its beginning was read, as of `1:2:3`.
    fn whole_address(&self, at: usize) -> Result<(), Fault> {
        let end = self.next.checked_sub(1).and_then(|last| self.tokens.get(last)).map(|token| token.end);
        if Some(self.here()) != end || !matches!(self.word(), Some(":" | "-")) {
            return Ok(());
        }
        let written = self.text.get(at..).unwrap_or_default();
        let written = written.split([' ', '\t', '\r', '\n', '(', ')']).next().unwrap_or_default();
        Err(Fault::new(at, format!("'{written}' is no Ethernet address")).cure(AS_ADDRESS))
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
        if let Some(number) = self.optional_number() {
            return Ok(number);
        }
        let fault = Fault::new(at, format!("a number is missing after '{after}'"));
        Err(match self.peek().map(|token| &token.what) {
            Some(What::Dotted(_)) if after == "/" => fault.cure("write 'mask' in place of '/'"),
            _ => fault,
        })
    }

    /// A number, also in parentheses.
    pub(super) fn optional_number(&mut self) -> Option<u32> {
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
            Some(token) => {
                Err(Fault::new(token.at, format!("')' is missing before '{}'", self.written(token))))
            }
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

    /// A token as it was written.
    pub(super) fn written(&self, token: &Token) -> &'a str {
        self.text.get(token.at..token.end).unwrap_or_default()
    }

    /// Refuses the next token, a word of tcpdump's that has no meaning here.
    pub(super) fn foreign_here(&self, word: &str) -> Fault {
        let (why, cure) = foreign(word).unwrap_or_default();
        let written = self.peek().map_or(word, |token| self.written(token));
        let fault = Fault::new(self.here(), format!("'{written}' {why}"));
        if cure.is_empty() { fault } else { fault.cure(cure) }
    }

    /// Refuses a value that stands where a primitive begins.
    fn unqualified(&self, token: &Token) -> Fault {
        let (at, written) = (token.at, self.written(token));
        match &token.what {
            What::Name(name) => Fault::new(at, format!("'{name}' is no word of the language"))
                .cure(in_place_of(name).unwrap_or_else(|| format!("did you mean 'host {name}'?"))),
            What::Number(_) => Fault::new(at, format!("{written} stands alone"))
                .cure(format!("did you mean 'port {written}'?")),
            What::Dotted(_) | What::V6(_) => {
                Fault::new(at, "an address stands alone").cure("write 'host' or 'net' before it")
            }
            What::Mac(_) => {
                Fault::new(at, "an Ethernet address stands alone").cure("write 'ether host' before it")
            }
            What::Word(_) => Fault::new(at, format!("'{written}' can't stand here")),
        }
    }

    /// Where the next token stands.
    pub(super) fn here(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }
}

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
