use super::*;
use clap::CommandFactory;
use std::fs;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn usage_errors_are_64_and_help_is_0() {
    assert_eq!(
        Cli::read(["palisade", "run", "--no-such"]).err(),
        Some(exit::USAGE)
    );
    assert_eq!(Cli::read(["palisade"]).err(), Some(exit::USAGE));
    assert_eq!(
        Cli::read(["palisade", "run", "--help"]).err(),
        Some(exit::OK)
    );
}

fn read(args: &[&str]) -> Command {
    Cli::read([&["palisade"], args].concat()).unwrap().command
}

#[test]
fn every_command_is_read() {
    let Command::Run(run) = read(&["run", "--config", "/p.toml", "--fence-settle", "1s"]) else {
        panic!("not run");
    };
    assert_eq!(run.sources.file.as_deref(), Some("/p.toml".as_ref()));
    assert_eq!(run.sources.flags["fence.settle"], "1s");
    let Command::Scopes(scopes) = read(&["scopes", "--json", "--state", "/s"]) else {
        panic!("not scopes");
    };
    assert!(scopes.json);
    assert_eq!(
        crate::config::state_folder(&scopes.state.sources).unwrap(),
        std::path::Path::new("/s")
    );
    let Command::Settle(settle) = read(&["settle", "a/b"]) else {
        panic!("not settle");
    };
    assert_eq!(settle.scope, "a/b");
    let Command::NewEpoch(epoch) = read(&["new-epoch", "--yes", "--advance", "7"]) else {
        panic!("not new-epoch");
    };
    assert_eq!((epoch.yes, epoch.advance), (true, Some(7)));
}

/// The state folder is found with a file that has other faults: a running proxy must be reachable all the same.
#[test]
fn the_state_folder_of_a_faulty_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    fs::write(&path, "state = \"/s\"\nthreads = \"many\"\nnope = 1\n").unwrap();
    let Command::Scopes(scopes) = read(&["scopes", "--config", path.to_str().unwrap()]) else {
        panic!("not scopes");
    };
    assert_eq!(
        crate::config::state_folder(&scopes.state.sources).unwrap(),
        std::path::Path::new("/s")
    );
}

fn ask(args: &[&str]) -> Result<String, (u8, String)> {
    let base = &["route", "--upstream", "http://db:1"];
    match read(&[base, args].concat()) {
        Command::Route(args) => route(&args),
        _ => panic!("not route"),
    }
}

#[test]
fn a_route_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("routes.toml");
    let text = "[[route]]\npath = \"/a/{*r}\"\nscope = \"a\"\n[[route]]\npath = \"/b/{*r}\"\nscope = \"b\"\n";
    fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let ask = |args: &[&str]| ask(&[&["--routes-file", file], args].concat());
    let told = ask(&["PUT", "/b/x"]).unwrap();
    assert!(told.contains("routes.toml:4): matches"), "{told}");
    assert!(
        told.ends_with("a write in the scope \"b\": it needs the token of that lease"),
        "{told}"
    );
    let told = ask(&["PUT", "http://db/b/x"]).unwrap();
    assert!(told.contains("a write in the scope \"b\""), "{told}");
    let told = ask(&["MOVE", "/a/x", "-H", "Destination: /b/x"]).unwrap();
    assert!(told.contains("refused, 403 crosses-scopes"), "{told}");
    let told = ask(&["CONNECT", "/a/x"]).unwrap();
    assert!(told.contains("405 method-refused"), "{told}");
    assert_eq!(ask(&["P T", "/a"]).unwrap_err().0, exit::USAGE);
    assert_eq!(ask(&["PUT", "a/b"]).unwrap_err().0, exit::USAGE);
    assert_eq!(ask(&["PUT", "/a#b"]).unwrap_err().0, exit::USAGE);
    assert_eq!(ask(&["PUT", "/a", "-H", "x"]).unwrap_err().0, exit::USAGE);
    assert_eq!(
        ask(&["PUT", "/a", "--threads", "x"]).unwrap_err().0,
        exit::CONFIG
    );
}

#[test]
fn completions_know_the_flags() {
    let mut script = Vec::new();
    completions(Shell::Bash, &mut script);
    let script = String::from_utf8(script).unwrap();
    assert!(script.contains("--fence-settle") && script.contains("new-epoch"));
}

#[test]
fn a_check_reads_the_files_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let check_text = |text: &str| {
        fs::write(&path, format!("upstream = \"http://db:1\"\n{text}")).unwrap();
        match read(&["check", "--config", path.to_str().unwrap()]) {
            Command::Check(args) => check(&args),
            _ => panic!("not check"),
        }
    };
    let shown = check_text("threads = 2\n").unwrap();
    assert!(
        shown.contains("threads = 2  # ") && shown.contains("p.toml:2"),
        "{shown}"
    );
    assert!(shown.contains("settle = \"30s\"  # default"), "{shown}");
    assert!(shown.contains("# routes: none"), "{shown}");
    let error =
        check_text("[tls]\ncert = \"/nonexistent/c\"\nkey = \"/nonexistent/k\"\n").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("p.toml:3: tls.cert: /nonexistent/c: "),
        "{error}"
    );
    let etcd = "leases = \"etcd://h\"\n[etcd]\nuser = \"u\"\npassword_file = \"/nonexistent/p\"\n";
    let error = check_text(etcd).unwrap_err().to_string();
    assert!(
        error.contains("p.toml:5: etcd.password_file: /nonexistent/p: "),
        "{error}"
    );
}
