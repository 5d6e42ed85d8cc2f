#!/usr/bin/env node
// npm install express@4 express-pouchdb pouchdb-core pouchdb-adapter-memory pouchdb-mapreduce
// node examples/node/document_store.cjs 127.0.0.1 5984
//
// A document store that speaks CouchDB's protocol, in memory: express-pouchdb, to put Palisade in front of.

const express = require("express");
const PouchDB = require("pouchdb-core")
  .plugin(require("pouchdb-adapter-memory"))
  .plugin(require("pouchdb-mapreduce"))
  .defaults({ adapter: "memory" });

const [host, port] = process.argv.slice(2);
const databases = require("express-pouchdb")(PouchDB, {
  mode: "minimumForPouchDB",
  overrideMode: { include: ["routes/find"] },
  inMemoryConfig: true,
});
express().use(databases).listen(Number(port), host);
