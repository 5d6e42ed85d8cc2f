//! What is shipped beside the programs: units, packages, images, manifests. Each is read by the tool that it is for, where that
//! needs no network; the commands in them are run, and the probes are answered by a real proxy.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_examples::brought::brought;
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, get, program, wait_for},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn packaging(name: &str) -> String {
    let path = root().join("packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    Command::new(program.as_ref())
        .args(arguments)
        .output()
        .unwrap()
}

fn python() -> Option<PathBuf> {
    brought("venv/bin/python")
}

/// A YAML file as JSON, each of its documents.
fn documents(file: &Path) -> Option<Vec<serde_json::Value>> {
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = run(python()?, &["-c", script, &file.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The settings are those of `text`, as `palisade check` sees it.
fn accepted(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("palisade.toml");
    fs::write(&file, text).unwrap();
    let output = run(
        program("palisade"),
        &["check", "--config", &file.display().to_string()],
    );
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_units_are_accepted_hardened_and_about_the_address_of_the_settings() {
    let shown = accepted(&packaging("palisade.toml"));
    let socket = packaging("systemd/palisade.socket");
    let address = socket
        .lines()
        .find_map(|line| line.strip_prefix("ListenStream="))
        .unwrap();
    assert!(shown.contains(&format!("[\"{address}\"]")), "{shown}");
    let unit = packaging("systemd/palisade.service");
    assert!(unit.contains("run --config /etc/palisade/palisade.toml"));
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: systemd-analyze is not installed (Debian's systemd)");
        return;
    }
    // The program stands elsewhere here.
    let folder = tempfile::tempdir().unwrap();
    let ours = program("palisade").display().to_string();
    let lease = program("palisade-lease").display().to_string();
    let put = |name: &str, text: &str| {
        let text = text
            .replace("/usr/bin/palisade-lease ", &format!("{lease} "))
            .replace("/usr/bin/palisade ", &format!("{ours} "));
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let service = put("palisade.service", &unit);
    let mut files = vec![service.clone(), put("palisade.socket", &socket)];
    for name in ["nightly-report.service", "nightly-report.timer"] {
        let path = root().join("examples/systemd").join(name);
        files.push(put(name, &fs::read_to_string(path).unwrap()));
    }
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&files)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verify.stderr).into_owned();
    // It looks at what else is installed on the machine, too; and it passes over what it does not know with a word.
    let about_ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("palisade") || line.contains("nightly"))
        .collect();
    assert!(verify.status.success() && about_ours.is_empty(), "{said}");
    // 0 is shut away, 10 is bare; tenths, times ten.
    let exposed = run(
        "systemd-analyze",
        &["security", "--offline=true", "--threshold=15", &service],
    );
    assert!(
        exposed.status.success(),
        "{}",
        String::from_utf8_lossy(&exposed.stdout)
    );
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    for name in ["palisade", "palisade-lease"] {
        assert!(run(program(name), &["man", &dir]).status.success());
        let help = run(program(name), &["--help"]).stdout;
        let help = String::from_utf8(help).unwrap();
        let commands = help.split("Commands:\n").nth(1).unwrap().lines();
        // What stands further in is the rest of a description.
        let commands = commands
            .map_while(|line| line.strip_prefix("  "))
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split_whitespace().next());
        let mut pages = 0;
        for command in commands.filter(|command| *command != "help") {
            let page =
                fs::read_to_string(folder.path().join(format!("{name}-{command}.1"))).unwrap();
            assert!(
                page.contains(".TH") && page.contains(".SH SYNOPSIS"),
                "{page}"
            );
            pages += 1;
        }
        assert!(pages > 5, "{help}");
        assert!(folder.path().join(format!("{name}.1")).exists());
    }
    let nowhere = run(program("palisade"), &["man", "/nowhere"]);
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(said.starts_with("palisade: /nowhere: "), "{said}");
}

/// `cargo deb` itself takes a release build; here it is seen to that it finds what it is told to take.
#[test]
fn what_the_debian_packages_hold_is_there() {
    for (package, made) in [("proxy", 5), ("lease", 5)] {
        let text = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let assets = text
            .split("assets = [")
            .nth(1)
            .unwrap()
            .split("\n]")
            .next()
            .unwrap();
        let mut built = 0;
        for line in assets.lines().filter(|line| line.contains('[')) {
            let source = line.split('"').nth(1).unwrap();
            if source.contains("target/") {
                built += 1;
                continue;
            }
            let source = source.trim_end_matches('*');
            assert!(
                root().join(package).join(source).exists(),
                "{package}: {source}"
            );
        }
        assert_eq!(
            built, made,
            "the program, manual pages and three completions"
        );
    }
    let script = fs::read_to_string(root().join("scripts/deb.sh")).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        assert!(script.contains(&format!("completions {shell}")));
        for name in ["palisade", "palisade-lease"] {
            assert!(run(program(name), &["completions", shell]).status.success());
        }
    }
}

#[test]
fn the_image_runs_as_nobody_and_asks_itself_how_it_is() {
    let file = packaging("docker/Dockerfile");
    let last = |word: &str| {
        let mut lines = file.lines().filter(|line| line.starts_with(word));
        lines
            .next_back()
            .unwrap_or_else(|| panic!("no {word}"))
            .to_owned()
    };
    assert_eq!(last("USER"), "USER 65532:65532");
    for line in file.lines().filter(|line| line.starts_with("FROM")) {
        assert!(
            line.contains(':') && !line.contains(":latest"),
            "{line}: which version?"
        );
    }
    // The words of a command in JSON, as the engine runs it.
    let words = |line: &str| -> Vec<String> {
        serde_json::from_str(&line[line.find('[').unwrap()..]).unwrap()
    };
    let entry = words(&last("ENTRYPOINT"));
    let (health, command) = (words(&last("HEALTHCHECK")), words(&last("CMD")));
    assert_eq!(
        (entry[0].as_str(), health[0].as_str()),
        ("/usr/bin/palisade", "/usr/bin/palisade")
    );
    let settings = packaging("docker/palisade.toml");
    accepted(&settings);
    // The same commands, with a proxy that runs and after it has gone.
    let (etcd, origin) = (Etcd::start().unwrap(), Origin::tcp().unwrap());
    let mut proxy = Palisade::new(&format!("http://{}", origin.address()))
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    assert_eq!((command[0].as_str(), health[1].as_str()), ("run", "health"));
    let state = proxy.state().display().to_string();
    let ask = || run(program("palisade"), &["health", "--state", &state]);
    wait_for("readiness", || {
        let said = ask();
        (said.status.success() && said.stdout == b"ready\n").then_some(())
    });
    drop(origin);
    let not = ask();
    let said = String::from_utf8_lossy(&not.stderr).into_owned();
    assert_eq!(not.status.code(), Some(1));
    assert!(
        said.contains("upstream") && said.contains("can't be reached"),
        "{said}"
    );
    proxy.stop();
    assert_eq!(ask().status.code(), Some(69));
}

#[test]
fn the_store_of_the_compose_file_is_reached_through_palisade_only() {
    let Some(documents) = documents(&root().join("packaging/docker/compose.yaml")) else {
        return;
    };
    let services = documents[0]["services"].as_object().unwrap();
    let of = |name: &str| services[name]["networks"].clone();
    assert_eq!(of("store"), serde_json::json!(["back"]));
    assert_eq!(documents[0]["networks"]["back"]["internal"], true);
    for (name, service) in services {
        let shares = of(name).as_array().unwrap().contains(&"back".into());
        assert_eq!(shares, name == "store" || name == "palisade", "{name}");
        assert!(
            name == "palisade" || service["ports"].is_null(),
            "{name} is open to the host"
        );
    }
    let folder = root()
        .join("packaging/docker")
        .join(services["palisade"]["build"]["context"].as_str().unwrap());
    assert!(
        folder
            .join(
                services["palisade"]["build"]["dockerfile"]
                    .as_str()
                    .unwrap()
            )
            .exists()
    );
}

/// What would be lost between the parts of the manifest: time to end in, the only way to the store, and what all replicas share.
#[test]
fn the_replicas_of_the_manifest_end_in_time_and_are_the_only_way_to_the_store() {
    let file = root().join("packaging/kubernetes/replicas.yaml");
    let Some(all) = documents(&file) else { return };
    let named = |kind: &str, name: &str| {
        all.iter()
            .find(|document| document["kind"] == kind && document["metadata"]["name"] == name)
            .unwrap()
    };
    let settings = named("ConfigMap", "palisade")["data"]["palisade.toml"]
        .as_str()
        .unwrap();
    let shown = accepted(settings);
    let seconds = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
        // `key = "10s"  # where it stands`
        let value = line.split('"').nth(1).unwrap();
        let digits: String = value.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    };
    let set = &named("StatefulSet", "palisade")["spec"];
    assert!(
        set["replicas"].as_u64().unwrap() > 1 && shown.contains("group"),
        "{shown}"
    );
    let pod = &set["template"]["spec"];
    let ends_in = seconds("drain_delay") + seconds("shutdown_timeout");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > ends_in);
    let labels = &set["template"]["metadata"]["labels"];
    for (kind, name) in [
        ("PodDisruptionBudget", "palisade"),
        ("NetworkPolicy", "palisade"),
    ] {
        let spec = &named(kind, name)["spec"];
        let selector = match kind {
            "NetworkPolicy" => &spec["podSelector"],
            _ => &spec["selector"],
        };
        assert_eq!(&selector["matchLabels"], labels, "{kind}");
    }
    assert_eq!(&named("Service", "reports")["spec"]["selector"], labels);
    let store = &named("NetworkPolicy", "store")["spec"]["ingress"];
    assert_eq!(store.as_array().unwrap().len(), 1);
    assert_eq!(&store[0]["from"][0]["podSelector"]["matchLabels"], labels);
    let port = store[0]["ports"][0]["port"].as_u64().unwrap();
    assert!(settings.contains(&format!(":{port}\"")), "the store's port");
    assert!(
        pod["volumes"][0]["emptyDir"].is_null(),
        "floors outlive a pod"
    );
    assert_eq!(
        set["volumeClaimTemplates"][0]["spec"]["accessModes"][0],
        "ReadWriteOncePod"
    );
}

#[test]
fn the_manifests_are_valid_and_their_probes_are_answered() {
    let Some(python) = python() else { return };
    let file = root().join("packaging/kubernetes/sidecar.yaml");
    let others = [
        "packaging/kubernetes/replicas.yaml",
        "examples/kubernetes/cronjob.yaml",
    ];
    for file in others.map(|name| root().join(name)).iter().chain([&file]) {
        let validate = "import sys, kubernetes_validate as k, yaml\nfor d in yaml.safe_load_all(open(sys.argv[1])): k.validate(d, '1.29', strict=True)";
        let output = run(&python, &["-c", validate, &file.display().to_string()]);
        assert!(
            output.status.success(),
            "{}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let all = documents(&file).unwrap();
    let kind = |kind: &str| {
        all.iter()
            .find(|document| document["kind"] == kind)
            .unwrap()
    };
    let pod = &kind("StatefulSet")["spec"]["template"]["spec"];
    let sidecar = &pod["initContainers"][0];
    assert_eq!(
        sidecar["restartPolicy"], "Always",
        "only then is it a sidecar"
    );
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let settings = kind("ConfigMap")["data"]["palisade.toml"].as_str().unwrap();
    let shown = accepted(settings);
    assert!(shown.contains("unix:/run/store/store.sock"), "{shown}");
    // A real proxy over a unix socket, with the routes of the manifest.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("store.sock");
    let _origin = Origin::unix(&socket).unwrap();
    let etcd = Etcd::start().unwrap();
    let mut proxy = Palisade::new(&format!("unix:{}", socket.display()))
        .unwrap()
        .set("leases", etcd.url())
        .routes(&settings[settings.find("[[route]]").unwrap()..])
        .unwrap();
    proxy.start().unwrap();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = sidecar[probe]["httpGet"]["path"].as_str().unwrap();
        wait_for(probe, || {
            let answer = get(proxy.admin(), path).ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        });
    }
    let arguments: Vec<&str> = sidecar["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    assert_eq!(
        arguments,
        ["run", "--config", "/etc/palisade/palisade.toml"]
    );
}
