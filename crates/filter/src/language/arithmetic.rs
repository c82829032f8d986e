//! Arithmetic: `tcp[13] & 2`, `len - 14`.
//!
//! Operators bind as they do in tcpdump, which is not quite as in C: its grammar gives `^` and `%` no weight at all, so
//! that beside them everything groups from right to left: `8 * 3 % 2` is `8 * (3 % 2)`.

use super::error::Fault;
use super::lexer::{Token, What};
use super::parser::Parser;
use super::slips::{in_place_of_number, symbols};
use super::syntax::{Arithmetic, Layer, Operator};

/// How deep a tree of operations may be: what waits for its right side must fit the stack of an eBPF program.
const DEEPEST: usize = 40;

/// Whether arithmetic, and not a value or a keyword, begins here.
pub(super) fn follows(tokens: &[Token]) -> bool {
    match tokens.first().map(|token| &token.what) {
        Some(What::Word("len" | "-")) => true,
        Some(What::Word("(")) => group_follows(tokens),
        Some(What::Word(word)) => {
            Layer::of(word).is_some() && matches!(tokens.get(1), Some(Token { what: What::Word("["), .. }))
        }
        Some(What::Number(_)) => operator_follows(&tokens[1..]),
        _ => false,
    }
}

/// Whether the parenthesis that begins here is part of a calculation: an operator stands behind its end.
pub(super) fn group_follows(tokens: &[Token]) -> bool {
    let mut open = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.what {
            What::Word("(") => open += 1,
            What::Word(")") if open == 1 => return operator_follows(&tokens[index + 1..]),
            What::Word(")") => open -= 1,
            _ => {}
        }
    }
    false
}

/// Whether an operator or a comparison stands here, perhaps behind closing parentheses.
pub(super) fn operator_follows(tokens: &[Token]) -> bool {
    let next = tokens.iter().find(|token| token.what != What::Word(")"));
    match next.map(|token| &token.what) {
        Some(What::Word(word)) => {
            operator(word).is_some() || matches!(*word, "=" | "!=" | "<" | "<=" | ">" | ">=")
        }
        _ => false,
    }
}

/// An operand and what was built of it, waiting for what stands on the right.
struct Waiting {
    left: Option<Arithmetic>,
    operator: Option<Operator>,
    at: usize,
}

/// A calculation up to the first token that can't be part of it.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Arithmetic, Fault> {
    parser.nested(|parser| {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            while parser.word() == Some("-") && waiting.len() <= DEEPEST {
                waiting.push(Waiting { left: None, operator: None, at: parser.here() });
                parser.advance();
            }
            if waiting.len() > DEEPEST {
                return Err(too_deep(parser.here()));
            }
            let mut value = primary(parser)?;
            let next = parser.word().and_then(operator);
            while let Some(top) = waiting.pop_if(|top| groups_left(top.operator, next)) {
                value = shallow(join(top, value), parser.here())?;
            }
            match next {
                Some(operator) => {
                    waiting.push(Waiting { left: Some(value), operator: Some(operator), at: parser.here() });
                    parser.advance();
                }
                None => return Ok(value),
            }
        }
    })
}

fn join(waiting: Waiting, right: Arithmetic) -> Arithmetic {
    match (waiting.left, waiting.operator) {
        (Some(left), Some(operator)) => {
            Arithmetic::Binary(operator, Box::new(left), Box::new(right), waiting.at)
        }
        _ => Arithmetic::Negate(Box::new(right)),
    }
}

/// Whether what stands left of an operand takes it, rather than `next` on its right. A sign has no operator.
fn groups_left(left: Option<Operator>, next: Option<Operator>) -> bool {
    let Some(next) = next else { return true };
    let left = match left {
        Some(left) => weight(left),
        None => Some(u8::MAX),
    };
    match (left, weight(next)) {
        (Some(left), Some(next)) => left >= next,
        _ => false,
    }
}

fn weight(operator: Operator) -> Option<u8> {
    match operator {
        Operator::Or => Some(1),
        Operator::And => Some(2),
        Operator::ShiftLeft | Operator::ShiftRight => Some(3),
        Operator::Add | Operator::Subtract => Some(4),
        Operator::Multiply | Operator::Divide => Some(5),
        Operator::Xor | Operator::Modulo => None,
    }
}

fn operator(word: &str) -> Option<Operator> {
    Some(match word {
        "+" => Operator::Add,
        "-" => Operator::Subtract,
        "*" => Operator::Multiply,
        "/" => Operator::Divide,
        "%" => Operator::Modulo,
        "&" => Operator::And,
        "|" => Operator::Or,
        "^" => Operator::Xor,
        "<<" => Operator::ShiftLeft,
        ">>" => Operator::ShiftRight,
        _ => return None,
    })
}

fn primary(parser: &mut Parser<'_>) -> Result<Arithmetic, Fault> {
    let at = parser.here();
    let Some(token) = parser.peek().cloned() else {
        return Err(Fault::new(at, "a number is missing at its end"));
    };
    match token.what.clone() {
        What::Number(number) => {
            parser.advance();
            Ok(Arithmetic::Number(number))
        }
        What::Word("len") => {
            parser.advance();
            Ok(Arithmetic::Length)
        }
        What::Word("(") => {
            parser.advance();
            let inner = parse(parser)?;
            parser.close(at)?;
            Ok(inner)
        }
        What::Word(word) => match Layer::of(word) {
            Some(layer) => {
                parser.advance();
                load(parser, layer, at)
            }
            None => {
                let before = match parser.before() {
                    Some(What::Word(before)) => Some(*before),
                    _ => None,
                };
                let fault = Fault::new(at, format!("a number is missing before '{word}'"));
                Err(match symbols(before, word) {
                    Some(cure) => fault.cure(cure),
                    None => fault,
                })
            }
        },
        What::Name(name) if in_place_of_number(&name).is_some() => {
            let cure = in_place_of_number(&name).unwrap_or_default();
            Err(Fault::new(at, format!("'{name}' is no number")).cure(cure))
        }
        What::Name(name) if name.contains('-') => {
            Err(Fault::new(at, format!("'{name}' is read as one name")).cure("put blanks around '-'"))
        }
        _ => Err(Fault::new(at, format!("'{}' is no number", parser.written(&token)))),
    }
}

fn load(parser: &mut Parser<'_>, layer: Layer, layer_at: usize) -> Result<Arithmetic, Fault> {
    if parser.word() != Some("[") {
        return Err(Fault::new(parser.here(), format!("'[' is missing after '{}'", layer.word())));
    }
    parser.advance();
    let index = parse(parser)?;
    let mut size = 1;
    if parser.word() == Some(":") {
        parser.advance();
        let at = parser.here();
        size = parser.number(":")?;
        if !matches!(size, 1 | 2 | 4) {
            return Err(Fault::new(at, format!("{size} bytes can't be loaded at once")).cure("1, 2 or 4"));
        }
    }
    if parser.word() != Some("]") {
        return Err(Fault::new(parser.here(), "']' is missing"));
    }
    parser.advance();
    shallow(Arithmetic::Load(layer, Box::new(index), size, layer_at), layer_at)
}

/// The tree, unless it is too deep.
fn shallow(value: Arithmetic, at: usize) -> Result<Arithmetic, Fault> {
    if depth(&value) > DEEPEST { Err(too_deep(at)) } else { Ok(value) }
}

fn too_deep(at: usize) -> Fault {
    Fault::new(at, format!("more than {DEEPEST} operations are nested here"))
}

fn depth(value: &Arithmetic) -> usize {
    match value {
        Arithmetic::Number(_) | Arithmetic::Length => 0,
        Arithmetic::Load(_, index, ..) => 1 + depth(index),
        Arithmetic::Negate(value) => 1 + depth(value),
        Arithmetic::Binary(_, left, right, _) => 1 + depth(left).max(depth(right)),
    }
}
