//! The files that the program writes for people to look at.
#![expect(clippy::print_stdout, reason = "it says where they are")]

use super::Done;
use palisade_loadtest::{bench::record::Record, history, html};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::Path,
    process::ExitCode,
};

/// The report of a file: of a bench's figures, or else of a history.
pub(crate) fn of_file(file: &Path, output: &Path) -> Done {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let from = BufReader::new(File::open(file).map_err(named)?);
    // A history has an event in each line; the figures are one object over many.
    let is_history = first_line(from).map_err(named)?.contains("\"event\"");
    let from = BufReader::new(File::open(file).map_err(named)?);
    if is_history {
        let run = html::Timeline::read(history::read(from));
        return write(&html::chaos::report(&run)?, output);
    }
    let record: Record = serde_json::from_reader(from).map_err(|error| {
        format!(
            "{}: neither a history of `chaos` nor figures of `bench --json`: {error}",
            file.display()
        )
    })?;
    of_bench(&record, output)
}

fn first_line(from: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(100_000).read_line(&mut line)?;
    Ok(line)
}

/// The report of a bench.
pub(crate) fn of_bench(record: &Record, output: &Path) -> Done {
    write(&html::bench::report(record)?, output)
}

/// A bench's figures.
pub(crate) fn figures(record: &Record, output: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(output)?);
    serde_json::to_writer_pretty(&mut file, record)?;
    file.flush()?;
    println!("figures: {}", output.display());
    Ok(())
}

fn write(html: &str, output: &Path) -> Done {
    fs::write(output, html)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", output.display())))?;
    println!("report: {}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// The command that this is, without the folder of the program.
pub(crate) fn command() -> String {
    let mut words = vec!["palisade-loadtest".to_owned()];
    words.extend(std::env::args().skip(1));
    words.join(" ")
}
