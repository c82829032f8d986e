//! Comparing what cargo knows of the crates with the table: arrows, and dependencies nobody uses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::sources::File;
use super::table::Row;
use crate::project::{self, Problem, about};

/// A package of the workspace.
#[derive(Debug)]
pub(super) struct Member {
    /// Its folder, from the workspace's: `crates/frame`.
    pub(super) folder: String,
    /// Packages of the workspace it depends on, as folders in `crates`; not for tests and build scripts.
    arrows: BTreeSet<String>,
    /// Names of all its dependencies, of whatever kind.
    dependencies: BTreeSet<String>,
}

impl Member {
    /// The name in the table; `None` for what is not part of the product.
    fn name(&self) -> Option<&str> {
        self.folder.strip_prefix("crates/")
    }
}

/// The packages in `cargo metadata`.
///
/// # Errors
/// When a member is not where it should be.
pub(super) fn members(metadata: &Value) -> Result<Vec<Member>, Problem> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let root = text(&metadata["workspace_root"]);
    let folder =
        |path: &str| Path::new(path).strip_prefix(&root).ok().and_then(Path::to_str).map(str::to_owned);
    let mut members = Vec::new();
    for package in list(&metadata["packages"]) {
        let manifest = text(&package["manifest_path"]);
        let folder_of = |manifest: &str| folder(manifest.strip_suffix("/Cargo.toml").unwrap_or(manifest));
        let place =
            folder_of(&manifest).ok_or_else(|| Problem(format!("{manifest} lies outside the workspace")))?;
        let dependencies = list(&package["dependencies"]);
        let arrows =
            dependencies.iter().filter(|d| d["kind"].is_null()).filter_map(|d| folder(&text(&d["path"])));
        members.push(Member {
            folder: place,
            arrows: arrows.map(|path| path.trim_start_matches("crates/").to_owned()).collect(),
            dependencies: dependencies.iter().map(|d| text(&d["name"])).collect(),
        });
    }
    Ok(members)
}

/// Crates and arrows that are in the table or in the manifests, but not in both.
pub(super) fn arrows(rows: &[Row], members: &[Member]) -> Vec<String> {
    let mut findings = Vec::new();
    for row in rows {
        let line = row.line;
        let Some(member) = members.iter().find(|m| m.name() == Some(&row.name)) else {
            findings.push(format!("ARCHITECTURE.md:{line}: there is no crate crates/{}", row.name));
            continue;
        };
        let listed: BTreeSet<String> = row.depends_on.iter().cloned().collect();
        let name = &row.name;
        for extra in member.arrows.difference(&listed) {
            findings.push(format!(
                "ARCHITECTURE.md:{line}: {name} depends on {extra}, which the table does not allow"
            ));
        }
        for missing in listed.difference(&member.arrows) {
            findings.push(format!(
                "ARCHITECTURE.md:{line}: {name} does not depend on {missing}: take the arrow out"
            ));
        }
    }
    for name in members.iter().filter_map(Member::name) {
        if rows.iter().all(|row| row.name != name) {
            findings.push(format!("ARCHITECTURE.md: the crate {name} is not in the table"));
        }
    }
    findings
}

/// Packages that do not take the workspace's lints.
///
/// # Errors
/// When a manifest cannot be read.
pub(super) fn without_lints(members: &[Member]) -> Result<Vec<String>, Problem> {
    let mut findings = Vec::new();
    for member in members {
        let manifest = format!("{}/Cargo.toml", member.folder);
        let text = fs::read_to_string(project::root().join(&manifest)).map_err(about(&manifest))?;
        if !takes_lints(&text) {
            findings.push(format!("{manifest}: the workspace's lints are missing: [lints] workspace = true"));
        }
    }
    Ok(findings)
}

fn takes_lints(manifest: &str) -> bool {
    let section = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    section.take_while(|line| !line.starts_with('[')).any(|line| line.replace(' ', "") == "workspace=true")
}

/// Names in the root manifest's `[workspace.dependencies]`, with their lines from 1.
///
/// # Errors
/// When the manifest cannot be read.
pub(super) fn workspace_dependencies() -> Result<Vec<(usize, String)>, Problem> {
    let path = project::root().join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(about(path.display()))?;
    Ok(names_in(&text))
}

fn names_in(manifest: &str) -> Vec<(usize, String)> {
    let lines = manifest.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let section = lines.skip_while(|(_, line)| *line != "[workspace.dependencies]").skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with('['));
    section
        .filter(|(_, line)| !line.starts_with('#'))
        .filter_map(|(i, line)| Some((i, line.split_once('=')?.0.trim().to_owned())))
        .collect()
}

/// Dependencies of the workspace that no member has, and dependencies of a member that its sources do not name.
pub(super) fn unused(workspace: &[(usize, String)], members: &[Member], files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for (line, name) in workspace {
        if !members.iter().any(|member| member.dependencies.contains(name)) {
            findings.push(format!("Cargo.toml:{line}: no crate depends on {name}: take it out"));
        }
    }
    for member in members {
        let folder = &member.folder;
        let own = || files.iter().filter(|file| file.path.starts_with(&format!("{folder}/")));
        for name in &member.dependencies {
            let word = name.replace('-', "_");
            if !own().any(|file| names(&file.text, &word)) {
                findings.push(format!("{folder}/Cargo.toml: nothing in {folder} uses {name}: take it out"));
            }
        }
    }
    findings
}

/// Whether a line of code names the crate `word`.
fn names(text: &str, word: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let whole =
        |line: &str, at: usize| !line[..at].ends_with(inside) && !line[at + word.len()..].starts_with(inside);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.into_iter().any(|line| line.match_indices(word).any(|(at, _)| whole(line, at)))
}

#[cfg(test)]
mod tests {
    use super::super::table::Policy;
    use super::*;

    fn member(folder: &str, arrows: &[&str], dependencies: &[&str]) -> Member {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Member { folder: folder.into(), arrows: set(arrows), dependencies: set(dependencies) }
    }

    fn row(line: usize, name: &str, depends_on: &[&str]) -> Row {
        let depends_on = depends_on.iter().map(ToString::to_string).collect();
        Row { line, name: name.into(), depends_on, policy: Policy::Forbid }
    }

    #[test]
    fn metadata_gives_folders_and_arrows() {
        let metadata = serde_json::json!({ "workspace_root": "/w", "packages": [
            { "manifest_path": "/w/crates/port/Cargo.toml", "dependencies": [
                { "name": "bywash-frame", "kind": null, "path": "/w/crates/frame" },
                { "name": "bywash-lab", "kind": "dev", "path": "/w/crates/lab" },
                { "name": "thiserror", "kind": null } ] },
            { "manifest_path": "/w/xtask/Cargo.toml", "dependencies": [] } ] });
        let members = members(&metadata).unwrap();
        assert_eq!(members[0].name(), Some("port"));
        assert_eq!(members[0].arrows, BTreeSet::from(["frame".to_owned()]));
        assert_eq!(members[0].dependencies.len(), 3);
        assert_eq!(members[1].name(), None);
    }

    #[test]
    fn missing_and_superfluous_arrows_and_crates_are_named_by_line() {
        let members = [
            member("crates/frame", &[], &[]),
            member("crates/port", &["frame", "sys"], &[]),
            member("crates/extra", &[], &[]),
            member("xtask", &[], &[]),
        ];
        let rows = [row(5, "frame", &["wire"]), row(6, "port", &["frame"]), row(7, "gone", &[])];
        assert_eq!(
            arrows(&rows, &members),
            [
                "ARCHITECTURE.md:5: frame does not depend on wire: take the arrow out",
                "ARCHITECTURE.md:6: port depends on sys, which the table does not allow",
                "ARCHITECTURE.md:7: there is no crate crates/gone",
                "ARCHITECTURE.md: the crate extra is not in the table",
            ]
        );
        assert_eq!(arrows(&[row(1, "a", &[])], &[member("crates/a", &[], &[])]), [""; 0]);
    }

    #[test]
    fn a_manifest_takes_the_workspace_s_lints_in_their_section_only() {
        assert!(takes_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        for bad in ["[package]\n", "[lints]\n\n[x]\nworkspace = true\n", "[x]\nworkspace = true\n[lints]\n"] {
            assert!(!takes_lints(bad), "{bad}");
        }
    }

    #[test]
    fn dependencies_nobody_uses_are_found() {
        let manifest = "[workspace]\nx = 1\n\n[workspace.dependencies]\n# c = 1\nlibc = \"0.2\"\n\nclap = { version = \"4\" }\n\n[profile.dev]\ny = 1\n";
        let workspace = names_in(manifest);
        assert_eq!(workspace, [(6, "libc".to_owned()), (8, "clap".to_owned())]);
        let members = [member("crates/a", &[], &["libc", "serde-json"])];
        let file = |text: &str| File { path: "crates/a/src/lib.rs".into(), text: text.into() };
        let used = [file("use libc::c_int;\n"), file("fn f() { serde_json::json!(1); }")];
        assert_eq!(
            unused(&workspace, &members, &used),
            ["Cargo.toml:8: no crate depends on clap: take it out"]
        );
        let not_used = [file("// serde_json\nuse libc_types::x; use my_libc;")];
        assert_eq!(unused(&[], &members, &not_used).len(), 2);
    }
}
