//! What stands below the options in `--help`, laid out for the terminal's width.
//!
//! These texts are written in lines of the source's own width. clap would break each longer line by itself, and leave a
//! rest of a word or two behind each. So paragraphs are made one line again, and filled; columns keep their places.

use clap::Command;

/// Columns when there is no terminal, or it does not say.
const USUAL_WIDTH: usize = 100;

/// Narrower than this a column to the right of a command is not worth its place.
const NARROWEST: usize = 24;

/// Where what does not fit beside a command stands, below it.
const BELOW: usize = 6;

/// The command and its parts, with their texts laid out for the terminal.
pub(crate) fn laid_out(command: Command) -> Command {
    fitted(command, terminal_width())
}

fn fitted(mut command: Command, width: usize) -> Command {
    if let Some(text) = command.get_after_help().map(|text| fit(&text.to_string(), width)) {
        command = command.after_help(text);
    }
    command.term_width(width).mut_subcommands(|part| fitted(part, width))
}

fn terminal_width() -> usize {
    let of_terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal.or_else(told).filter(|width| *width > 0).unwrap_or(USUAL_WIDTH)
}

/// A text in lines of at most `width` columns, where no word is longer.
fn fit(text: &str, width: usize) -> String {
    let mut fitted: Vec<String> = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    for line in text.lines() {
        if !line.is_empty() && !line.starts_with(' ') {
            paragraph.extend(line.split(' '));
            continue;
        }
        fill(paragraph.drain(..), (0, 0), width, &mut fitted);
        if line.chars().count() <= width {
            fitted.push(line.into());
        } else {
            fit_columns(line, width, &mut fitted);
        }
    }
    fill(paragraph.drain(..), (0, 0), width, &mut fitted);
    fitted.join("\n")
}

/// A line that is too long: what stands in its last column goes on below itself, or where that is too narrow, below the
/// line.
fn fit_columns(line: &str, width: usize, fitted: &mut Vec<String>) {
    let indent = line.len() - line.trim_start().len();
    let behind = line[indent..].rfind("  ").map_or(indent, |gap| indent + gap + 2);
    let (before, column) = line.split_at(behind);
    let at = before.chars().count();
    if at + NARROWEST <= width {
        let first = fitted.len();
        fill(column.split(' '), (at, at.max(BELOW)), width, fitted);
        if let Some(first) = fitted.get_mut(first) {
            first.replace_range(..at, before);
        }
    } else {
        if !before.trim().is_empty() {
            fill(before.split_whitespace(), (indent, indent + BELOW), width, fitted);
        }
        fill(column.split(' '), (BELOW, BELOW), width, fitted);
    }
}

/// As many words on each line as fit, behind so many blanks on the first line and on the others.
fn fill<'a>(
    words: impl Iterator<Item = &'a str>,
    (first, others): (usize, usize),
    width: usize,
    fitted: &mut Vec<String>,
) {
    let mut line = String::new();
    let mut columns = 0;
    for word in words {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > width {
            fitted.push(std::mem::replace(&mut line, " ".repeat(others)));
        } else if columns > 0 {
            line.push(' ');
        } else {
            line.push_str(&" ".repeat(first));
        }
        columns = line.chars().count() + length;
        line.push_str(word);
    }
    if columns > 0 {
        fitted.push(line);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    fn each_text(command: &Command, look: &mut impl FnMut(&str)) {
        if let Some(text) = command.get_after_help() {
            look(&text.to_string());
        }
        command.get_subcommands().for_each(|part| each_text(part, look));
    }

    #[test]
    fn every_text_fits_and_no_line_ends_before_it_is_full() {
        let mut texts = 0;
        for width in [60, 80, 100, 132] {
            each_text(&Cli::command(), &mut |text| {
                let fitted = fit(text, width);
                let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
                assert_eq!(words(&fitted), words(text), "no word is lost");
                let lines: Vec<&str> = fitted.lines().collect();
                for line in &lines {
                    let is_one_word = !line.trim().contains(' ');
                    assert!(line.chars().count() <= width || is_one_word, "{width}: {line}");
                }
                for [line, next] in lines.array_windows() {
                    let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(' ');
                    let word = next.split(' ').next().unwrap_or_default();
                    let has_room = line.chars().count() + 1 + word.chars().count() <= width;
                    assert!(
                        !(is_paragraph(line) && is_paragraph(next) && has_room),
                        "{width}: '{word}' fits behind: {line}"
                    );
                }
                texts += 1;
            });
        }
        assert!(texts > 4 * 10, "only {texts} texts");
    }

    #[test]
    fn a_column_goes_on_below_itself_or_below_the_line() {
        let line = "  bywash generate null:      as fast as it goes, in a mix of sizes";
        assert_eq!(
            fit(line, 54),
            "  bywash generate null:      as fast as it goes, in a\n                             mix of sizes"
        );
        assert_eq!(
            fit(line, 40),
            "  bywash generate null:\n      as fast as it goes, in a mix of\n      sizes"
        );
        assert_eq!(fit(line, 100), line);
        assert_eq!(fit("  bywash vf set eth1 0 --vlan 7", 28), "  bywash vf set eth1 0\n      --vlan 7");
    }
}
