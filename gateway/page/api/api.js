// Shows /openapi.json in Swagger UI, light or dark as the browser is. Nothing is asked of other
// hosts: the validator, which is one, is off.

const dark = matchMedia("(prefers-color-scheme: dark)");
const followBrowser = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
followBrowser();
dark.addEventListener("change", followBrowser);

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  validatorUrl: null,
});
