//! The language of filter expressions: from text to a syntax tree, as pcap-filter(7) describes it.
//!
//! What the words *mean* is not known here; see [`crate::meaning`].

mod arithmetic;
mod error;
mod lexer;
mod parser;
mod primitive;
mod slips;
mod syntax;
mod words;

pub(crate) use error::Fault;
pub use error::ParseError;
pub(crate) use parser::parse;
pub(crate) use slips::AS_ADDRESS;
pub(crate) use syntax::{
    Arithmetic, ByteTest, Connective, Direction, Fragments, Id, Kind, Layer, Llc, Operator, Primitive,
    Qualifiers, Relation, Syntax, TransportTest,
};
pub(crate) use words::nearest;
