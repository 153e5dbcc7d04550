/** Users and access rules. */
import { useState } from "preact/hooks";
import { call, messageOf, path, post, remove } from "../api";
import type { Page, Rule, User } from "../contract";
import { count, plural } from "../format";
import { ask, say } from "../components/dialog";
import { useResource } from "../components/resource";
import { Badge, Code, Field, Notice, PageHead, Panel, State, Table } from "../components/ui";

export function AccessPage() {
  const users = useResource<Page<User>>("/v1/users?limit=1000");
  const rules = useResource<Page<Rule>>("/v1/rules?limit=1000");
  return (
    <>
      <PageHead
        title="Users and rules"
        note="Who may connect, and what each may publish and subscribe. The first rule that fits decides."
      />
      <div class="split split-access">
        <Panel title="Users" note={users.value !== null && plural(users.value.items.length, "user")}>
          {users.error !== "" && <Notice tone="bad">{users.error}</Notice>}
          {users.value !== null && <UserTable users={users.value.items} reload={users.reload} />}
          <UserForm reload={users.reload} />
        </Panel>
        <Panel title="Rules" note={rules.value !== null && plural(rules.value.items.length, "rule")}>
          {rules.error !== "" && <Notice tone="bad">{rules.error}</Notice>}
          {rules.value !== null && <RuleTable rules={rules.value.items} reload={rules.reload} />}
          <RuleForm reload={rules.reload} />
        </Panel>
      </div>
    </>
  );
}

function UserTable({ users, reload }: { users: readonly User[]; reload: () => void }) {
  const drop = (user: User) =>
    ask({
      title: `Remove user ${user.name}?`,
      body: (
        <p>
          Whoever is connected under this name is disconnected and cannot come back. The rules and tokens of
          the user are removed, too.
        </p>
      ),
      verb: "Remove",
      act: async () => {
        await remove(path(["v1", "users", user.name]));
        reload();
      },
      done: `${user.name} is removed`,
    });
  return (
    <Table
      label="Users"
      columns={[
        { name: "User", show: (user) => <span class="id">{user.name}</span> },
        {
          name: "Roles",
          show: (user) => (
            <span class="filters">
              {user.roles.map((role) => (
                <Badge key={role} tone={role === "admin" ? "accent" : "neutral"}>
                  {role}
                </Badge>
              ))}
            </span>
          ),
        },
        { name: "Password", show: (user) => (user.has_password ? "set" : <span class="quiet">none</span>) },
        { name: "Tokens", number: true, show: (user) => count(user.tokens) },
        {
          name: "Actions",
          actions: true,
          show: (user) => (
            <button
              type="button"
              class="small danger-quiet"
              aria-label={`Remove user ${user.name}`}
              onClick={() => drop(user)}
            >
              Remove…
            </button>
          ),
        },
      ]}
      rows={users}
      keyOf={(user) => user.name}
      empty="There are no users: this machine may do everything, others nothing. The first user must be an admin."
    />
  );
}

function UserForm({ reload }: { reload: () => void }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [roles, setRoles] = useState("");
  const [failure, setFailure] = useState("");
  const add = async () => {
    try {
      await post("/v1/users", { name, password, roles: roles.split(/[\s,]+/).filter((role) => role !== "") });
      setName("");
      setPassword("");
      setRoles("");
      setFailure("");
      say(`User ${name} is added`);
      reload();
    } catch (error) {
      setFailure(messageOf(error));
    }
  };
  return (
    <form
      class="form under-table"
      aria-label="Add a user"
      autocomplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        void add();
      }}
    >
      <h3>Add a user</h3>
      <div class="row">
        <Field label="Name">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              autocomplete="off"
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Password">
          {(id) => (
            <input
              id={id}
              type="password"
              required
              autocomplete="new-password"
              value={password}
              onInput={(event) => setPassword(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Roles">
          {(id) => (
            <input
              id={id}
              type="text"
              placeholder="admin, operator, observer"
              value={roles}
              onInput={(event) => setRoles(event.currentTarget.value)}
            />
          )}
        </Field>
        <button type="submit" class="primary">
          Add user
        </button>
      </div>
      {failure !== "" && <Notice tone="bad">{failure}</Notice>}
    </form>
  );
}

function RuleTable({ rules, reload }: { rules: readonly Rule[]; reload: () => void }) {
  const drop = (rule: Rule) =>
    ask({
      title: `Remove rule ${rule.number}?`,
      body: (
        <p>
          {rule.user}: {rule.effect} {rule.action} <Code>{rule.filter}</Code>
        </p>
      ),
      verb: "Remove",
      act: async () => {
        await remove(path(["v1", "rules", rule.number]));
        reload();
      },
      done: `Rule ${rule.number} is removed`,
    });
  return (
    <Table
      label="Rules"
      columns={[
        { name: "Number", number: true, show: (rule) => rule.number },
        {
          name: "User",
          show: (rule) =>
            rule.user === "*" ? <span class="quiet">everybody</span> : <span class="id">{rule.user}</span>,
        },
        {
          name: "Effect",
          show: (rule) => <State tone={rule.effect === "allow" ? "good" : "bad"}>{rule.effect}</State>,
        },
        { name: "Action", show: (rule) => rule.action },
        { name: "Filter", show: (rule) => <Code>{rule.filter}</Code> },
        {
          name: "Actions",
          actions: true,
          show: (rule) => (
            <button
              type="button"
              class="small danger-quiet"
              aria-label={`Remove rule ${rule.number}`}
              onClick={() => drop(rule)}
            >
              Remove…
            </button>
          ),
        },
      ]}
      rows={rules}
      keyOf={(rule) => rule.number}
      empty="There are no rules."
    />
  );
}

function RuleForm({ reload }: { reload: () => void }) {
  const [user, setUser] = useState("");
  const [effect, setEffect] = useState("allow");
  const [action, setAction] = useState("all");
  const [filter, setFilter] = useState("");
  const [failure, setFailure] = useState("");
  const add = async () => {
    try {
      await call("POST", "/v1/rules", { user, effect, action, filter });
      setFilter("");
      setFailure("");
      say("The rule is added");
      reload();
    } catch (error) {
      setFailure(messageOf(error));
    }
  };
  return (
    <form
      class="form under-table"
      aria-label="Add a rule"
      onSubmit={(event) => {
        event.preventDefault();
        void add();
      }}
    >
      <h3>Add a rule</h3>
      <div class="row">
        <Field label="User">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              placeholder="*"
              value={user}
              onInput={(event) => setUser(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Effect">
          {(id) => (
            <select id={id} value={effect} onChange={(event) => setEffect(event.currentTarget.value)}>
              <option>allow</option>
              <option>deny</option>
            </select>
          )}
        </Field>
        <Field label="Action">
          {(id) => (
            <select id={id} value={action} onChange={(event) => setAction(event.currentTarget.value)}>
              <option>all</option>
              <option>publish</option>
              <option>subscribe</option>
            </select>
          )}
        </Field>
        <Field label="Filter">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              spellcheck={false}
              value={filter}
              onInput={(event) => setFilter(event.currentTarget.value)}
            />
          )}
        </Field>
        <button type="submit" class="primary">
          Add rule
        </button>
      </div>
      {failure !== "" && <Notice tone="bad">{failure}</Notice>}
    </form>
  );
}
