//! What a kernel says of its own types and functions, in the BPF Type Format.
//!
//! Linux gives it in `/sys/kernel/btf/vmlinux`. The layout is that of `Documentation/bpf/btf.rst`: a header, the types one
//! behind the other, numbered from 1 on, and their names.

/// What the file begins with; it shows the byte order.
const MAGIC: u16 = 0xeb9f;
/// Bytes that each type begins with: where its name stands, what it is, and its size or another type.
const TYPE: usize = 12;
/// Bytes of a structure's member: where its name stands, its type, and its offset in bits.
const MEMBER: usize = 12;

const STRUCTURE: u32 = 4;
const UNION: u32 = 5;
const ENUMERATION: u32 = 6;
const FUNCTION: u32 = 12;

/// The types of a kernel.
pub(crate) struct Btf<'a> {
    bytes: &'a [u8],
    /// Where names begin.
    names: usize,
    /// Where each type begins, from the one with the number 1 on.
    types: Vec<usize>,
}

/// The beginning of a type.
struct Head<'a> {
    name: &'a [u8],
    kind: u32,
    /// Where its members begin, and how many they are.
    members: usize,
    count: usize,
}

impl<'a> Btf<'a> {
    /// Reads it; `None` when it is cut, of another byte order, or has a kind of types that is not known here.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        if u16::from_ne_bytes(*bytes.first_chunk()?) != MAGIC {
            return None;
        }
        let header = index(bytes, 4)?;
        let mut at = header + index(bytes, 8)?;
        let end = at + index(bytes, 12)?;
        let mut btf = Self { bytes, names: header + index(bytes, 16)?, types: Vec::new() };
        while at < end {
            btf.types.push(at);
            at = btf.behind(at)?;
        }
        (at == end).then_some(btf)
    }

    /// The number of a function.
    pub(crate) fn function(&self, name: &str) -> Option<i32> {
        let place = self.types.iter().position(|at| {
            self.head(*at).is_some_and(|head| head.kind == FUNCTION && head.name == name.as_bytes())
        });
        i32::try_from(place? + 1).ok()
    }

    /// How many bytes into a structure a member stands, also one of a part without a name.
    pub(crate) fn member(&self, structure: &str, member: &str) -> Option<i16> {
        let named = |head: &Head<'_>| head.kind == STRUCTURE && head.name == structure.as_bytes();
        let found = self.types.iter().filter_map(|at| self.head(*at)).find(named)?;
        let bits = self.member_bits(&found, member.as_bytes(), 4)?;
        bits.is_multiple_of(8).then_some(bits / 8).and_then(|bytes| i16::try_from(bytes).ok())
    }

    /// The value of a name that an enumeration gives.
    pub(crate) fn enumerator(&self, name: &str) -> Option<i32> {
        let enumerations =
            self.types.iter().filter_map(|at| self.head(*at)).filter(|head| head.kind == ENUMERATION);
        let mut values = enumerations.flat_map(|head| (0..head.count).map(move |n| head.members + 8 * n));
        let at = values.find(|at| self.name(*at) == Some(name.as_bytes()))?;
        word(self.bytes, at + 4).map(u32::cast_signed)
    }

    /// Looks into parts without a name as deep as `depth`.
    fn member_bits(&self, of: &Head<'_>, name: &[u8], depth: u32) -> Option<u32> {
        (0..of.count).map(|n| of.members + MEMBER * n).find_map(|at| {
            // Where there are fields of bits the upper byte is the width of one.
            let offset = word(self.bytes, at + 8)? & 0x00ff_ffff;
            let found = self.name(at)?;
            if found == name {
                return Some(offset);
            }
            let part = *self.types.get(index(self.bytes, at + 4)?.checked_sub(1)?)?;
            let part = self.head(part).filter(|part| matches!(part.kind, STRUCTURE | UNION));
            let part = part.filter(|_| found.is_empty() && depth > 0)?;
            Some(offset + self.member_bits(&part, name, depth - 1)?)
        })
    }

    fn head(&self, at: usize) -> Option<Head<'a>> {
        let info = word(self.bytes, at + 4)?;
        let count = usize::try_from(info & 0xffff).ok()?;
        Some(Head { name: self.name(at)?, kind: info >> 24 & 0x1f, members: at + TYPE, count })
    }

    /// Where the next type begins.
    fn behind(&self, at: usize) -> Option<usize> {
        let Head { kind, members, count, .. } = self.head(at)?;
        let bytes = match kind {
            // Pointers, names declared ahead, `typedef`, `volatile`, `const`, `restrict`, functions, numbers with a point, tags of types.
            2 | 7 | 8 | 9 | 10 | 11 | FUNCTION | 16 | 18 => 0,
            // Numbers, variables, tags of declarations.
            1 | 14 | 17 => 4,
            // Arrays.
            3 => 12,
            STRUCTURE | UNION => MEMBER * count,
            // Enumerations, what functions take.
            ENUMERATION | 13 => 8 * count,
            // Sections, enumerations of eight bytes.
            15 | 19 => 12 * count,
            _ => return None,
        };
        Some(members + bytes)
    }

    /// The name that stands where the number there says.
    fn name(&self, at: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.names + index(self.bytes, at)?..)?;
        rest.split(|byte| *byte == 0).next()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn index(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = "\0cast\0buff\0data\0flags\0HAS_FRAGS\0";

    /// Where a name stands.
    fn named(name: &str) -> u32 {
        u32::try_from(NAMES.find(&format!("\0{name}\0")).unwrap() + 1).unwrap()
    }

    fn file(types: &[u32]) -> Vec<u8> {
        let [types_len, names_len] = [4 * types.len(), NAMES.len()].map(|len| u32::try_from(len).unwrap());
        let header = [24, 0, types_len, types_len, names_len];
        let numbers = header.iter().chain(types).flat_map(|number| number.to_ne_bytes());
        let magic = MAGIC.to_ne_bytes().into_iter().chain([1, 0]);
        magic.chain(numbers).chain(NAMES.bytes()).collect()
    }

    fn kernel() -> Vec<u8> {
        file(
            &[
                // 1: a number of 32 bits, and its encoding.
                &[0, 1 << 24, 4, 32][..],
                // 2: the part without a name.
                &[0, STRUCTURE << 24 | 2, 8, 0, 1, 0, named("flags"), 1, 32],
                // 3: a part of two, of which one is asked for.
                &[0, UNION << 24 | 1, 8, 0, 2, 0],
                // 4: widths of fields stand in the upper byte.
                &[named("buff"), 1 << 31 | STRUCTURE << 24 | 2, 12, named("data"), 1, 32 << 24, 0, 3, 32],
                &[named("HAS_FRAGS"), ENUMERATION << 24 | 1, 4, named("HAS_FRAGS"), 2],
                // 6: what a function takes, and 7: the function.
                &[0, 13 << 24 | 1, 1, named("data"), 4],
                &[named("cast"), FUNCTION << 24, 6],
            ]
            .concat(),
        )
    }

    #[test]
    fn functions_members_and_values_are_found_by_their_names() {
        let bytes = kernel();
        let btf = Btf::new(&bytes).unwrap();
        assert_eq!((btf.function("cast"), btf.function("buff"), btf.function("cas")), (Some(7), None, None));
        assert_eq!((btf.member("buff", "data"), btf.member("buff", "flags")), (Some(0), Some(8)));
        assert_eq!((btf.member("buff", "more"), btf.member("cast", "data")), (None, None));
        assert_eq!((btf.enumerator("HAS_FRAGS"), btf.enumerator("flags")), (Some(2), None));
    }

    #[test]
    fn what_is_cut_or_unknown_is_not_read() {
        let bytes = kernel();
        let types = bytes.len() - NAMES.len();
        (0..types).for_each(|len| assert!(Btf::new(&bytes[..len]).is_none(), "{len}"));
        assert!(Btf::new(&file(&[0, 31 << 24, 0])).is_none());
        let foreign: Vec<u8> = [bytes[1], bytes[0]].into_iter().chain(bytes[2..].iter().copied()).collect();
        assert!(Btf::new(&foreign).is_none());
    }

    /// A structure that is a part of itself.
    #[test]
    fn a_circle_ends() {
        let bytes = file(&[named("buff"), STRUCTURE << 24 | 1, 4, 0, 1, 0]);
        assert_eq!(Btf::new(&bytes).unwrap().member("buff", "data"), None);
    }
}
