/** The login form, where the node has users. */
import { useState } from "preact/hooks";
import { identify, messageOf, post } from "../api";
import { Mark } from "../components/header";
import { Field, Notice } from "../components/ui";

export function LoginPage() {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [failure, setFailure] = useState("");
  const [isBusy, setBusy] = useState(false);
  const login = async () => {
    setBusy(true);
    setFailure("");
    try {
      await post("/v1/login", { user, password });
      await identify();
    } catch (error) {
      setFailure(messageOf(error));
      setPassword("");
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form
        class="panel form"
        onSubmit={(event) => {
          event.preventDefault();
          void login();
        }}
      >
        <h1>
          <Mark /> Millrace
        </h1>
        <p class="note">Log in with a user of this cluster.</p>
        <Field label="User">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              autofocus
              autocomplete="username"
              spellcheck={false}
              value={user}
              onInput={(event) => setUser(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Password">
          {(id) => (
            <input
              id={id}
              type="password"
              required
              autocomplete="current-password"
              value={password}
              onInput={(event) => setPassword(event.currentTarget.value)}
            />
          )}
        </Field>
        {failure !== "" && <Notice tone="bad">{failure}</Notice>}
        <button type="submit" class="primary" disabled={isBusy}>
          Log in
        </button>
      </form>
    </main>
  );
}
