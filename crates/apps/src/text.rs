//! Files that people write: their text, and where in it something stands.

/// A file that is no text as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbled {
    /// What stands before the first byte that belongs to no character.
    pub before: String,
    /// What is wrong with that.
    pub what: String,
}

/// A file's bytes as text.
///
/// # Errors
/// [`Garbled`], when they are not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, Garbled> {
    String::from_utf8(bytes).map_err(|error| {
        let (before, rest) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let byte = rest.first().copied().unwrap_or_default();
        let what = format!("the byte 0x{byte:02x} is not UTF-8: save the file as UTF-8");
        Garbled { before: String::from_utf8_lossy(before).into_owned(), what }
    })
}

/// Line and column of a byte, both from 1; columns are characters.
pub fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(at)];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_utf_8_is_found_by_line_and_column() {
        let Garbled { before, what } = text_of(b"# t\xc3\xa4st\nname = 'w\xe4b'".to_vec()).unwrap_err();
        assert_eq!(place(&before, before.len()), (2, 10));
        assert!(what.contains("0xe4 is not UTF-8"), "{what}");
        assert_eq!(text_of(b"name = 'web'".to_vec()).as_deref(), Ok("name = 'web'"));
    }
}
