/** Says to screen readers what others see change: nodes that go and come, and new leaders. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Overview } from "../contract";
import { overview } from "../live";

/** What changed between two overviews, in sentences. */
export function changes(before: Overview, after: Overview): string[] {
  const said: string[] = [];
  const known = new Map(before.nodes.map((node) => [node.node, node.state]));
  for (const node of after.nodes) {
    const state = known.get(node.node);
    if (state === undefined) said.push(`Node ${node.node} joined.`);
    else if (state !== node.state) said.push(`Node ${node.node} is ${node.state}.`);
    known.delete(node.node);
  }
  for (const gone of known.keys()) said.push(`Node ${gone} left.`);
  if (before.leader !== after.leader) {
    said.push(after.leader === null ? "The cluster has no leader." : `${after.leader} leads the cluster.`);
  }
  return said;
}

export function Announcer() {
  const before = useRef<Overview | null>(null);
  const [words, setWords] = useState("");
  const now = overview.value;
  useEffect(() => {
    if (now !== null && before.current !== null) {
      const said = changes(before.current, now);
      if (said.length > 0) setWords(said.join(" "));
    }
    before.current = now;
  }, [now]);
  return (
    <div class="only-heard" aria-live="assertive" role="log">
      {words}
    </div>
  );
}
