// SPDX-License-Identifier: GPL-2.0-or-later
//
// node api_fields.mjs FOLDER >api_fields.json
//
// Writes which fields objects of Kubernetes' API have, and of which types, one type a line: for manifests.py. FOLDER is that of the
// npm package @kubernetes/client-node, whose models are made from the API's own description. Run by hand for a new release of it.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const KINDS = ["V1Namespace", "V1ServiceAccount", "V1ClusterRole", "V1ClusterRoleBinding", "V1DaemonSet", "V1Deployment", "V1Pod",
  "V1ConfigMap", "V1Service", "V1DeviceClass", "ResourceV1ResourceClaim", "V1ResourceClaimTemplate", "V1ResourceSlice"];
const folder = process.argv[2];
const models = await import(pathToFileURL(join(folder, "dist/gen/models/all.js")));
const inside = (type) => type.replace(/^Array<(.*)>$/, "$1").replace(/^\{ \[key: string\]: (.*); \}$/, "$1").replace(/^Set<(.*)>$/, "$1");
const out = {};
const wanted = [...KINDS];
while (wanted.length > 0) {
  const name = wanted.pop();
  if (out[name] || !models[name]?.attributeTypeMap)
    continue;
  out[name] = {};
  for (const field of models[name].attributeTypeMap) {
    out[name][field.baseName] = field.type;
    let type = field.type;
    while (inside(type) !== type)
      type = inside(type);
    wanted.push(type);
  }
}
const version = JSON.parse(readFileSync(join(folder, "package.json"))).version;
const lines = Object.keys(out).sort().map((name) => `  ${JSON.stringify(name)}: ${JSON.stringify(out[name])}`);
console.log(`{\n  "source": ${JSON.stringify(`@kubernetes/client-node ${version}`)},\n${lines.join(",\n")}\n}`);
