//! Registers as data: name, offsets, access, reset value and fields, one line each.

/// What reading and writing a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only; a write changes nothing.
    RO,
    /// Read and write.
    RW,
    /// Read only, and reading clears it: a counter.
    RC,
    /// Writing ones clears it, and for many reading does, too: a cause.
    W1C,
    /// Write only: a command. What it reads as means nothing.
    WO,
}

impl Access {
    /// As datasheets write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RO => "RO",
            Self::RW => "RW",
            Self::RC => "RC",
            Self::W1C => "W1C",
            Self::WO => "WO",
        }
    }
}

/// Some neighbouring bits of a 32-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The bits, in place.
    pub mask: u32,
}

impl Field {
    /// The bits from the first number down to the last: `[15, 13]`, or `[26]` for one.
    pub const fn new(bits: &[u32]) -> Self {
        let (high, low) = (bits[0], bits[bits.len() - 1]);
        assert!(low <= high && high < 32, "bits count from 31 down to 0");
        Self { mask: (u32::MAX >> (31 - high)) & (u32::MAX << low) }
    }

    /// Number of the lowest bit.
    pub const fn shift(self) -> u32 {
        self.mask.trailing_zeros()
    }

    /// The field's value in `word`.
    #[inline]
    pub const fn of(self, word: u32) -> u32 {
        (word & self.mask) >> self.shift()
    }

    /// Whether any of its bits is set in `word`.
    #[inline]
    pub const fn is_set(self, word: u32) -> bool {
        word & self.mask != 0
    }

    /// A word with `value` in this field and zeros elsewhere. Bits that do not fit are cut off.
    #[inline]
    pub const fn with(self, value: u32) -> u32 {
        (value << self.shift()) & self.mask
    }

    /// `word` with this field replaced by `value`.
    #[inline]
    pub const fn put(self, word: u32, value: u32) -> u32 {
        word & !self.mask | self.with(value)
    }
}

/// Where some of a register's instances lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset of the first, in bytes from the start of the BAR.
    pub offset: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// How many there are.
    pub count: u32,
}

impl Range {
    /// Number of the instance at `offset`.
    const fn index(&self, offset: u32) -> Option<u32> {
        if offset < self.offset {
            return None;
        }
        let (index, rest) = ((offset - self.offset) / self.stride, (offset - self.offset) % self.stride);
        if rest == 0 && index < self.count { Some(index) } else { None }
    }
}

/// A register, or an array of them.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// As the datasheet names it.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// What reading and writing does.
    pub access: Access,
    /// Where its instances lie, in the order of their numbers.
    pub ranges: &'static [Range],
    /// Second addresses of the first instances.
    pub aliases: &'static [Range],
    /// Its value after a reset; `None` when it is not known or comes from the EEPROM.
    pub reset: Option<u32>,
    /// Bits that a write changes. The others keep what they are.
    pub writable: u32,
    /// Names of its bits.
    pub fields: &'static [(&'static str, Field)],
}

impl Register {
    /// How many instances there are.
    pub const fn count(&self) -> u32 {
        let (mut count, mut i) = (0, 0);
        while i < self.ranges.len() {
            count += self.ranges[i].count;
            i += 1;
        }
        count
    }

    /// Offset of the register, or of the first of an array, in bytes.
    #[inline]
    pub const fn offset(&self) -> u32 {
        self.ranges[0].offset
    }

    /// Offset of instance `index`, in bytes.
    ///
    /// # Panics
    /// When there is no such instance.
    #[inline]
    pub const fn at(&self, index: u32) -> u32 {
        let (mut rest, mut i) = (index, 0);
        while i < self.ranges.len() {
            let range = &self.ranges[i];
            if rest < range.count {
                return range.offset + rest * range.stride;
            }
            rest -= range.count;
            i += 1;
        }
        panic!("no such instance of the register");
    }

    /// Number of the instance at `offset`, by its own address or by an alias.
    pub fn index(&self, offset: u32) -> Option<u32> {
        let mut before = 0;
        for range in self.ranges {
            if let Some(index) = range.index(offset) {
                return Some(before + index);
            }
            before += range.count;
        }
        self.aliases.iter().find_map(|range| range.index(offset))
    }
}

/// The register at `offset` of a table, and which instance.
pub fn find(table: &'static [Register], offset: u32) -> Option<(&'static Register, u32)> {
    table.iter().find_map(|register| Some((register, register.index(offset)?)))
}

/// The register of that name.
pub fn named(table: &'static [Register], name: &str) -> Option<&'static Register> {
    table.iter().find(|register| register.name.eq_ignore_ascii_case(name))
}

/// Makes a constant for each line, a module of the same name with its fields, and `TABLE` of them all.
///
/// A line: name, text, access, `[offset + stride * count, ...]`, then as far as known `also [aliases]`, `= reset`,
/// `& writable` and `{ FIELD high:low, FLAG bit }`.
macro_rules! registers {
    ($( $name:ident $about:literal $access:ident
        [ $( $offset:literal $(+ $stride:literal * $count:literal)? ),+ ]
        $(also [ $( $other:literal $(+ $ostride:literal * $ocount:literal)? ),+ ])?
        $(= $reset:literal)? $(& $mask:literal)?
        $({ $( $field:ident $high:literal $(: $low:literal)? ),* $(,)? })? ; )*) => {
        $(
            #[doc = $about]
            pub const $name: Register = Register {
                name: stringify!($name),
                about: $about,
                access: Access::$access,
                ranges: &[ $( registers!(@range $offset $($stride $count)?) ),+ ],
                aliases: &[ $($( registers!(@range $other $($ostride $ocount)?) ),+)? ],
                reset: registers!(@reset $($reset)?),
                writable: registers!(@mask $access $($mask)?),
                fields: &[ $($( (stringify!($field), $name::$field) ),*)? ],
            };
            #[doc = concat!("Fields of ", stringify!($name), ".")]
            #[expect(non_snake_case, reason = "named as its register")]
            pub mod $name {
                $($(
                    #[doc = concat!("Bits ", stringify!($high $(: $low)?), ".")]
                    pub const $field: crate::reg::Field = crate::reg::Field::new(&[$high $(, $low)?]);
                )*)?
            }
        )*
        /// Every register above, in the order of the file.
        pub const TABLE: &[Register] = &[ $( $name ),* ];
    };
    (@range $offset:literal) => { Range { offset: $offset, stride: 4, count: 1 } };
    (@range $offset:literal $stride:literal $count:literal) => {
        Range { offset: $offset, stride: $stride, count: $count }
    };
    (@reset) => { None };
    (@reset $reset:literal) => { Some($reset) };
    (@mask RO) => { 0 };
    (@mask RC) => { 0 };
    (@mask $access:ident) => { u32::MAX };
    (@mask $access:ident $mask:literal) => { $mask };
}
pub(crate) use registers;

/// Makes constants of one type, and a table of them all with their names.
macro_rules! constants {
    ($table:ident: $type:ty; $( $(#[$about:meta])* $name:ident = $value:expr; )*) => {
        $( $(#[$about])* pub const $name: $type = $value; )*
        /// All of these, by their names, in the order of the file.
        pub const $table: &[(&str, $type)] = &[ $( (stringify!($name), $name) ),* ];
    };
}
pub(crate) use constants;

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: Register = Register {
        name: "SPLIT",
        about: "",
        access: Access::RW,
        ranges: &[
            Range { offset: 0x1018, stride: 0x40, count: 64 },
            Range { offset: 0xd018, stride: 0x40, count: 64 },
        ],
        aliases: &[Range { offset: 0x2100, stride: 4, count: 16 }],
        reset: None,
        writable: u32::MAX,
        fields: &[],
    };

    #[test]
    fn an_array_may_lie_in_two_places() {
        assert_eq!((SPLIT.count(), SPLIT.offset()), (128, 0x1018));
        assert_eq!((SPLIT.at(0), SPLIT.at(63), SPLIT.at(64)), (0x1018, 0x1fd8, 0xd018));
        assert_eq!(SPLIT.index(0xd058), Some(65));
        assert_eq!(SPLIT.index(0x2104), Some(1));
        assert_eq!(SPLIT.index(0x101c), None);
        assert_eq!(SPLIT.index(0x2140), None);
    }

    #[test]
    fn a_field_is_cut_out_and_put_back() {
        let lms = Field::new(&[15, 13]);
        assert_eq!((lms.mask, lms.shift()), (0xe000, 13));
        assert_eq!(lms.of(0x1234_7fff), 3);
        assert_eq!(lms.put(0x1234_7fff, 5), 0x1234_bfff);
        assert_eq!(lms.with(9), 0x2000);
        assert_eq!(Field::new(&[31]).mask, 0x8000_0000);
        assert_eq!(Field::new(&[31, 0]).mask, u32::MAX);
    }
}
